# SPDX-License-Identifier: Apache-2.0
"""VarveStager: what dcp.async_save copies before it lets the training go on."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Optional

import torch
from torch.distributed.checkpoint.staging import AsyncStager
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .. import _core
from .._errors import FailedPreconditionError, InvalidArgumentError

_ALIGNMENT = 64
_KEPT = 2  # sets of buffers: one that a save reads, one for the next


@dataclasses.dataclass
class _Source:
    """A plain tensor of the state, and where in the buffers its copy lies."""

    tensor: Any
    begin: int
    num_bytes: int


_Layout = list[tuple[int, int, str]]  # begin, bytes and kind of device of each source


class _Buffers:
    """Memory for a copy of the state. It is free when nobody holds a tensor of the last copy."""

    def __init__(self, layout: _Layout, num_bytes: int) -> None:
        pinned = torch.cuda.is_available()
        self.layout = layout
        self._memory = torch.empty(max(1, num_bytes), dtype=torch.uint8, pin_memory=pinned)
        self._stage = _core.Stage()
        self._lease: Any = None

    def is_free(self) -> bool:
        return self._lease is None or self._lease() is None

    def fill(self, sources: list[_Source], num_threads: int) -> tuple[Any, int]:
        """The memory as a tensor, and how many bytes were copied."""
        array = self._memory.numpy()
        self._lease = weakref.ref(array)  # all tensors made of it keep it alive
        root = torch.from_numpy(array)
        regions = []
        copied = 0
        for source in sources:
            if source.tensor.device.type == "cpu":
                address = self._memory.data_ptr() + source.begin
                regions.append((source.tensor.data_ptr(), address, source.num_bytes))
            else:
                _view(root, source).copy_(source.tensor, non_blocking=True)
                copied += source.num_bytes
        copied += self._stage.update(regions, num_threads)
        for device in {each.tensor.device for each in sources if each.tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return root, copied


class VarveStager(AsyncStager):
    """Gives dcp.async_save a copy of the state, and copies only what has changed since the last one.

        stager = varve.torch.VarveStager()
        future = dcp.async_save(state, storage_writer=..., async_stager=stager)

    Keep one for the whole training, as it keeps the copy. Chunks of tensors on the CPU are digested, and
    copied when they have changed. Tensors on a GPU are copied as a whole, to pinned memory, after the work
    that its current stream has.
    `last_copied_bytes` says how much that was. When a save still reads the last copy, a second one is made.
    Memory: the size of the state for each save that is under way at once. With `overlap`, async_save returns
    before the state is copied: call `wait_for_staging` before the next optimizer step. `num_threads` 0 is
    one for each core. Thread rule: one thread at a time.
    """

    def __init__(self, *, num_threads: int = 0, overlap: bool = False) -> None:
        self._num_threads = num_threads
        self._executor = ThreadPoolExecutor(1, "varve-stager") if overlap else None
        self._staging: Optional[Future[Any]] = None
        self._pool: list[_Buffers] = []
        self._closed = False
        self.last_copied_bytes = 0

    @property
    def should_synchronize_after_execute(self) -> bool:
        return False

    def stage(self, state_dict: Any, **_options: Any) -> Any:
        """The state with copies in place of its tensors, or with `overlap` a future of it."""
        if self._closed:
            raise FailedPreconditionError("the stager is closed")
        self.wait_for_staging()
        if self._executor is None:
            return self._stage(state_dict)
        gpus: set[int] = set()
        _find_gpus(state_dict, gpus)
        streams = [torch.cuda.current_stream(i) for i in sorted(gpus)]
        self._staging = self._executor.submit(self._stage_on, streams, state_dict)
        return self._staging

    def wait_for_staging(self) -> None:
        """Returns when the state is copied, and may change."""
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.result()

    def synchronize_staging(self) -> None:
        """As DCP calls wait_for_staging."""
        self.wait_for_staging()

    def close(self) -> None:
        """Gives the memory back when no save reads it any more."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        self._closed = True
        self._pool.clear()

    def _stage_on(self, streams: list[Any], state_dict: Any) -> Any:
        """On a thread of the stager, where other streams would be the current ones."""
        with contextlib.ExitStack() as scopes:
            for stream in streams:
                scopes.enter_context(torch.cuda.stream(stream))
            return self._stage(state_dict)

    def _stage(self, state_dict: Any) -> Any:
        with torch.no_grad():
            sources = _Sources()
            plan = sources.note(state_dict, ())
            buffers = self._free_buffers(sources)
            root, self.last_copied_bytes = buffers.fill(sources.found, self._num_threads)
            return _rebuild(plan, root)

    def _free_buffers(self, sources: _Sources) -> _Buffers:
        """Buffers of this layout that no save reads. Those that were used last come first."""
        layout = [(each.begin, each.num_bytes, each.tensor.device.type) for each in sources.found]
        for i, buffers in enumerate(self._pool):
            if buffers.layout == layout and buffers.is_free():
                self._pool.insert(0, self._pool.pop(i))
                break
        else:
            self._pool.insert(0, _Buffers(layout, sources.num_bytes))
        del self._pool[_KEPT:]  # what a save reads lives on until it ends
        return self._pool[0]


def _find_gpus(value: Any, found: set[int]) -> None:
    """Adds the numbers of the GPUs on which the state has tensors."""
    if isinstance(value, torch.Tensor):
        if value.is_cuda:
            found.add(value.get_device())
    elif isinstance(value, Mapping):
        for each in value.values():
            _find_gpus(each, found)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _find_gpus(each, found)


class _Leaf:
    """Stands for a tensor in a plan."""

    def __init__(self, source: _Source) -> None:
        self.source = source


class _Wrapped:
    """Stands for a DTensor or another tensor that is made of plain ones."""

    def __init__(self, tensor: Any, inner: dict[str, Any]) -> None:
        self.kind = type(tensor)
        self.inner = inner
        self.context = tensor.__tensor_flatten__()[1]
        self.size, self.stride = tensor.size(), tensor.stride()


class _Sources:
    """The plain tensors of a state, each memory once."""

    def __init__(self) -> None:
        self.found: list[_Source] = []
        self.num_bytes = 0
        self._known: dict[tuple[Any, ...], _Source] = {}

    def note(self, value: Any, path: tuple[str, ...]) -> Any:
        """The value with a _Leaf or _Wrapped for each tensor, and copies of what else may change."""
        if isinstance(value, torch.Tensor):
            return self._note_tensor(value, path)
        if isinstance(value, Mapping):
            return {key: self.note(each, (*path, str(key))) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            made = [self.note(each, (*path, str(i))) for i, each in enumerate(value)]
            if isinstance(value, list):
                return made
            return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
        if hasattr(value, "local_shards"):
            raise InvalidArgumentError(
                f"{'.'.join(path)} is a {type(value).__name__}, which VarveStager does not copy: save "
                "DTensors, or leave async_stager out"
            )
        return copy.deepcopy(value)

    def _note_tensor(self, tensor: Any, path: tuple[str, ...]) -> Any:
        if is_traceable_wrapper_subclass(tensor):
            names, _ = tensor.__tensor_flatten__()
            inner = {
                name: getattr(tensor, name) for name in names
            }  # a DTensor has a mesh there, too
            for name, each in inner.items():
                if isinstance(each, torch.Tensor):
                    inner[name] = self._note_tensor(each, path)
            return _Wrapped(tensor, inner)
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            raise InvalidArgumentError(
                f"{'.'.join(path)} is a tensor of layout {tensor.layout} on {tensor.device}, which "
                "VarveStager does not copy"
            )
        dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
        key = (dense.device, dense.data_ptr(), dense.dtype, dense.shape)
        known = self._known.get(key) if dense.numel() else None
        if known is None:
            known = _Source(dense, self.num_bytes, dense.numel() * dense.element_size())
            self._known[key] = known
            self.num_bytes += -(-known.num_bytes // _ALIGNMENT) * _ALIGNMENT
            self.found.append(known)  # which keeps its memory, and so its address, until the copy
        return _Leaf(known)


def _view(root: Any, source: _Source) -> Any:
    tensor = source.tensor
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    part = root[source.begin : source.begin + source.num_bytes]
    return part.view(tensor.dtype).view(tensor.shape)


def _rebuild(plan: Any, root: Any) -> Any:
    if isinstance(plan, _Leaf):
        return _view(root, plan.source)
    if isinstance(plan, _Wrapped):
        inner = {name: _rebuild(each, root) for name, each in plan.inner.items()}
        return plan.kind.__tensor_unflatten__(inner, plan.context, plan.size, plan.stride)
    if isinstance(plan, dict):
        return {key: _rebuild(each, root) for key, each in plan.items()}
    if isinstance(plan, list):
        return [_rebuild(each, root) for each in plan]
    if isinstance(plan, tuple):
        made = [_rebuild(each, root) for each in plan]
        return type(plan)(*made) if hasattr(plan, "_fields") else tuple(made)
    return plan
