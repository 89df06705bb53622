# SPDX-License-Identifier: Apache-2.0
"""Tensors on GPUs in saves and loads of a Checkpointer.

The C++ module digests plain dense tensors on a GPU where they lie, and copies chunks that have changed. All
other tensors on GPUs are copied to pinned memory of the host: each of them in every save. That is so for
buffers and other state that may change before the next optimizer step, and for tensors that are not dense. It
is so for all tensors where the C++ module cannot use the GPUs (Gpus.use).
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .. import _arrays, _core, _dtypes
from .._errors import InvalidArgumentError, UnavailableError
from ._capture import State

_ALIGNMENT = 64
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Gpus:
    """What one checkpointer knows of GPUs. Thread rule: one thread at a time, that of the training."""

    def __init__(self, handle: _core.Checkpointer) -> None:
        self._handle = handle
        self._used: Optional[frozenset[int]] = None  # None: no tensor on a GPU was seen yet
        self._copies = HostCopies()
        self._key: Optional[tuple[bytes, int, bool]] = None  # of what _copied holds for
        self._copied: list[int] = []

    def use(self, values: Iterable[Any]) -> None:
        """Tells the C++ module which GPUs have tensors, when it is not told yet.

        Those of the first call with any are used in place. Tensors on others are copied.
        """
        if self._used is not None:
            return
        devices = {value.get_device() for value in values if is_on_gpu(value)}
        if not devices:
            return
        self._used = frozenset()
        reason = self._use_devices(devices)
        if reason:
            _warn(f"varve copies whole tensors from the GPU in each save, because {reason}")
            return
        self._used = frozenset(devices)

    def _use_devices(self, devices: set[int]) -> str:
        """Lets the C++ module use these GPUs. Returns why it cannot, "" when it can."""
        if torch.version.cuda is None:
            return "it reads only GPUs of NVIDIA in place"
        if not _core.cuda_version():
            return "it was built without CUDA: build it on a machine with nvcc 12.8 or newer"
        try:
            self._handle.use_devices(sorted(devices), _current_stream)
        except UnavailableError as error:
            return str(error)
        return ""

    def takes(self, value: Any) -> bool:
        """Whether the C++ module reads and writes this tensor on a GPU in place."""
        return (
            self._used is not None
            and value.get_device() in self._used
            and type(value) in (torch.Tensor, torch.nn.Parameter)
            and value.layout is torch.strided
            and value.is_contiguous()
            and not value.is_conj()
            and not value.is_neg()
            and _has_whole_bytes(value.dtype)
        )

    def place(self, state: State, may_lend: bool) -> State:
        """The state as the C++ module takes it: with copies on the host of tensors that have to be copied.

        Those are all on GPUs unless `may_lend`. The copies are complete, and stay as they are until the
        next call.
        """
        layouts = _core.layouts_of(state.values) if _arrays.learn_torch() else None
        key = None if layouts is None else (layouts, state.num_lent, may_lend)
        if key is None or key != self._key:
            self.use(state.values)
            self._copied = [
                i
                for i, value in enumerate(state.values)
                if is_on_gpu(value) and not (may_lend and i < state.num_lent and self.takes(value))
            ]
            self._key = key
        if not self._copied:
            return state
        copies = self._copies.take(
            [_elements_of(state.names[i], state.values[i]) for i in self._copied]
        )
        copied = set(self._copied)
        lent = [i for i in range(state.num_lent) if i not in copied]
        rest = [i for i in range(state.num_lent, len(state.values)) if i not in copied]
        order = [*lent, *self._copied, *rest]
        return State(
            [state.names[i] for i in order],
            [state.roles[i] for i in order],
            [state.values[i] for i in lent] + copies + [state.values[i] for i in rest],
            len(lent) + len(copies),
            state.text,
        )


class HostCopies:
    """Pinned memory with copies of tensors on GPUs. It is kept from call to call."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._kinds: list[tuple[Any, Any]] = []  # dtype and shape of each
        self._copies: list[Any] = []

    def take(self, tensors: list[Any]) -> list[Any]:
        """Dense copies on the CPU, good until the next call. They lie where those of the last call lay.

        The work that the current streams have comes first. Waits once, until all copies are there.
        """
        kinds = [(tensor.dtype, tensor.shape) for tensor in tensors]
        if kinds != self._kinds:
            self._allocate(tensors)
            self._kinds = kinds
        with torch.no_grad():
            for copy, tensor in zip(self._copies, tensors, strict=True):
                _bytes_of(copy).copy_(_bytes_of(tensor), non_blocking=True)
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return list(self._copies)

    def _allocate(self, tensors: list[Any]) -> None:
        begins, total = [], 0
        for tensor in tensors:
            begins.append(total)
            num_bytes = tensor.numel() * tensor.element_size()
            total += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        if total > self._memory.numel():
            self._copies = []  # they keep the old memory
            self._memory = torch.empty(0, dtype=torch.uint8)
            pinned = torch.cuda.is_available()
            self._memory = torch.empty(total, dtype=torch.uint8, pin_memory=pinned)
        self._copies = []
        for tensor, begin in zip(tensors, begins, strict=True):
            num_bytes = tensor.numel() * tensor.element_size()
            part = self._memory[begin : begin + num_bytes]
            empty = torch.empty(tensor.shape, dtype=tensor.dtype)
            self._copies.append(part.view(tensor.dtype).view(tensor.shape) if num_bytes else empty)


def is_on_gpu(value: Any) -> bool:
    """Whether this is a tensor of a GPU of NVIDIA or AMD."""
    return isinstance(value, torch.Tensor) and value.is_cuda


def is_capturing() -> bool:
    """Whether work of the current stream becomes part of a CUDA graph."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def has_graphs() -> bool:
    """Whether this process has CUDA graphs now. They have memory of their own in torch's allocator."""
    if not torch.cuda.is_initialized():
        return False
    try:
        segments = torch.cuda.memory_snapshot()
    except (RuntimeError, AttributeError):  # another allocator, which does not say
        return False
    return any(tuple(each.get("segment_pool_id", (0, 0))) != (0, 0) for each in segments)


def _warn(text: str) -> None:
    """Warns at the line of the training that called this package."""
    frame, level = sys._getframe(), 1
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def _current_stream(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


def _has_whole_bytes(dtype: Any) -> bool:
    try:
        return _dtypes.of_torch(dtype).bits >= 8
    except InvalidArgumentError:
        return False


def _elements_of(name: str, tensor: Any) -> Any:
    """The tensor as plain elements. InvalidArgumentError: it is more than elements, or has none."""
    if tensor.layout != torch.strided or is_traceable_wrapper_subclass(tensor):
        raise InvalidArgumentError(
            f"tensor {name}: a {type(tensor).__name__} of layout {tensor.layout} has no plain elements "
            "to save"
        )
    return tensor.detach().resolve_conj().resolve_neg()


def _bytes_of(tensor: Any) -> Any:
    """A tensor of one byte an element as bytes, because not all such types can be copied."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
