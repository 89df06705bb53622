# SPDX-License-Identifier: Apache-2.0
"""varve as the storage of torch.distributed.checkpoint (DCP).

    dcp.save(state, storage_writer=varve.torch.VarveStorageWriter("ckpt", step=100))
    dcp.load(state, storage_reader=varve.torch.VarveStorageReader("ckpt", step=100))

The folder becomes the root of a group, in which each rank has a store of its own. What DCP calls a chunk
of a tensor is a shard with a layout. So varve reads the whole tensors, and DCP reads steps of other
programs. `finish`, on the coordinator, commits. Before it nothing is visible.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional, Union

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter
from torch.futures import Future

from .. import _arrays, _core, _dtypes, _store
from .._checkpoint import Checkpoint
from .._errors import AlreadyExistsError, Error, FailedPreconditionError, InvalidArgumentError
from . import _trees

_log = logging.getLogger("varve")
_SCHEME = "varve://"
_ITEM = (
    "dcp.metadata"  # what DCP's planner wants back, and which items are values of the state dict
)


def _split_id(checkpoint_id: Union[str, os.PathLike[str]]) -> tuple[str, Optional[str]]:
    """Path and step of "varve://PATH@STEP" or of a plain path."""
    text = os.fspath(checkpoint_id)
    if not text.startswith(_SCHEME):
        return text, None
    path, at, step = text.removeprefix(_SCHEME).rpartition("@")
    return (path, step) if at else (step, None)


class _Attempt:
    """The part of a save that this process takes."""

    def __init__(self, store: _store.Store, step: Any, what: str) -> None:
        self.store = store
        self.step = step
        self._what = what  # is saved by whom, for messages
        self._thread: Optional[threading.Thread] = None

    def commit(self) -> None:
        try:
            self.step.commit()
        finally:
            self.store.close()

    def commit_in_background(self) -> None:
        """As a rank that is not the coordinator, whose commit decides."""

        def run() -> None:
            try:
                self.commit()
            except Error as error:
                # The commit of the coordinator fails, too. DCP raises its error on all ranks, and this
                # one may say more.
                _log.error("%s: %s", self._what, error)

        self._thread = threading.Thread(target=run, name="varve-dcp-commit")
        self._thread.start()

    def end(self) -> None:
        """Gives up what is not committed, and waits for what is under way."""
        if self._thread is not None:
            self._thread.join()
        self.step.abandon()
        self.store.close()


_attempts: dict[str, _Attempt] = {}  # the last of this process in each folder
_attempts_lock = threading.Lock()


def _begin(path: str, make: Any) -> _Attempt:
    """Ends the attempt before, as one process has a member open once."""
    with _attempts_lock:
        before = _attempts.pop(os.path.realpath(path), None)
    if before is not None:
        before.end()
    attempt: _Attempt = make()
    with _attempts_lock:
        _attempts[os.path.realpath(path)] = attempt
    return attempt


class VarveStorageWriter(StorageWriter):
    """Saves a step of a run with dcp.save or dcp.async_save. All ranks share the folder.

    `timeout` in seconds is how long a rank waits for the others. `metrics` and `tags` are those of the
    coordinator. The other options are those of Store.save and varve.open. After an error, or when a rank
    was killed, nothing of the save is visible, and the next save needs nothing. The data is stored
    when `finish` returns on the coordinator, as dcp.save does on all ranks.
    """

    def __init__(
        self,
        path: Union[str, os.PathLike[str], None] = None,
        step: Optional[int] = None,
        *,
        run: str = "main",
        metrics: Mapping[str, float] = {},  # noqa: B006  (only read)
        tags: Union[str, Iterable[str]] = (),
        on_existing: str = "error",
        timeout: float = 120.0,
        compression: str = "auto",
        pipeline_budget_bytes: int = 256 << 20,
        num_threads: int = 0,
    ) -> None:
        super().__init__()
        self._path: Optional[str] = None
        self._step = step
        self._run = run
        self._metrics = dict(metrics)
        self._tags = [tags] if isinstance(tags, str) else list(tags)
        self._on_existing = on_existing
        self._timeout_ms = max(1, round(timeout * 1000))
        self._store_options = (compression, pipeline_budget_bytes, num_threads)
        self._is_coordinator = False
        self._attempt: Optional[_Attempt] = None
        if path is not None:
            self.reset(path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, os.PathLike[str]]) -> bool:
        return os.fspath(checkpoint_id).startswith(_SCHEME)

    def reset(self, checkpoint_id: Union[str, os.PathLike[str], None] = None) -> None:
        self._attempt = None
        if checkpoint_id is None:
            return
        self._path, step = _split_id(checkpoint_id)
        if step is not None:
            if not step.isdecimal():
                raise InvalidArgumentError(f"the step of {checkpoint_id} is no number")
            self._step = int(step)

    def storage_meta(self) -> Any:
        path, step = self._require_place()
        return StorageMeta(checkpoint_id=f"{_SCHEME}{path}@{step}", save_id=f"{self._run}@{step}")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_collectives") is False:
            raise InvalidArgumentError(
                "use_collectives=False cannot be used with varve: the coordinator commits for all ranks"
            )
        self._require_place()
        self._is_coordinator = is_coordinator

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        path, step = self._require_place()
        if os.path.exists(os.path.join(path, "FORMAT")):
            raise FailedPreconditionError(
                f"{path} is the store of one process. DCP saves in the root of a group: name another "
                "folder, and bring the steps of this one there with varve's copy"
            )
        if self._on_existing == "error" and _core.is_group(path):
            with _store.open(path) as store:
                if f"{self._run}@{step}" in store:
                    raise AlreadyExistsError(
                        f"step {step} of run {self._run} exists already in {path}"
                    )
        epoch = _core.start_epoch(path, len(plans))
        return [
            dataclasses.replace(plan, storage_data={"epoch": epoch, "rank": rank})
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: Any, planner: Any) -> Any:
        path, step = self._require_place()
        place = plan.storage_data

        def make() -> _Attempt:
            handle = _core.join(
                path, place["rank"], place["epoch"], self._timeout_ms, *self._store_options
            )
            store = _store.Store(handle, "a")
            try:
                return _Attempt(
                    store,
                    store.save(step, run=self._run, on_existing=self._on_existing),
                    f"rank {place['rank']} did not save step {step} of run {self._run} in {path}",
                )
            except BaseException:
                store.close()
                raise

        attempt = _begin(path, make)
        try:
            self._put_all(attempt, plan, planner)
        except BaseException:
            attempt.end()
            raise
        self._attempt = attempt
        if not self._is_coordinator:
            attempt.commit_in_background()
        future = Future()
        future.set_result([])  # a member of the group says what it holds, and DCP would gather it
        return future

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            raise FailedPreconditionError("finish comes after write_data, on the coordinator")
        try:
            items = [
                name
                for name, stored in metadata.state_dict_metadata.items()
                if isinstance(stored, BytesStorageMetadata)
            ]
            planner_data = _trees.Encoder().encode(metadata.planner_data, ("planner_data",))
            tree = {"format": 1, "items": items, "planner_data": planner_data}
            attempt.step.put_bytes(_ITEM, _trees.dumps(tree))
            attempt.step.metrics.update(self._metrics)
            attempt.step.tags += self._tags
            attempt.commit()
        except BaseException:
            attempt.end()
            raise

    def _require_place(self) -> tuple[str, int]:
        if self._path is None or self._step is None:
            raise InvalidArgumentError(
                "a save needs a path and a step: VarveStorageWriter(path, step=...), or a checkpoint_id "
                f"{_SCHEME}PATH@STEP"
            )
        return self._path, self._step

    def _put_all(self, attempt: _Attempt, plan: Any, planner: Any) -> None:
        items, tensors = [], []
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                attempt.step.put_bytes(item.index.fqn, data.getvalue())
            else:
                items.append(item)
                tensors.append(data)
        masters = _masters_of(items, tensors)
        numbers: Counter[str] = Counter()  # of the shards of each tensor
        for item, tensor in zip(items, tensors, strict=True):
            name = item.index.fqn
            master = masters.get(name, "")
            numbers[name] += _put_tensor(attempt.step._writer, item, tensor, numbers[name], master)


def _masters_of(items: list[Any], tensors: list[Any]) -> dict[str, str]:
    """Which whole tensors seem to be rounded copies. Ranks that hold parts might not agree on it."""
    if not _arrays.learn_torch():
        return {}
    whole = [i for i, item in enumerate(items) if item.type == WriteItemType.TENSOR]
    names = [items[i].index.fqn for i in whole]
    return _core.find_masters(names, [tensors[i] for i in whole])


def _put_tensor(writer: _core.Writer, item: Any, tensor: Any, number: int, master: str) -> bool:
    """False: the chunk is empty, and there is nothing to put."""
    name = item.index.fqn
    whole, chunk = item.tensor_data.size, item.tensor_data.chunk
    if tuple(chunk.sizes) != tuple(tensor.shape):
        raise InvalidArgumentError(
            f"tensor {name}: a chunk of {list(chunk.sizes)} is planned, and {list(tensor.shape)} is given"
        )
    box = None
    if item.type == WriteItemType.SHARD and whole:
        if tensor.numel() == 0 and whole.numel() > 0:
            return False  # as of the last ranks, when there are more ranks than rows
        box = (whole, chunk.offsets)
    if writer.put_torch(name, tensor, "other", master, "", number, box):
        return True
    try:
        memory = _arrays.memory_of(tensor)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"tensor {name}: {error}") from None
    if box is not None and memory.dtype.bits < 8:  # torch counts pairs of F4
        box = (
            [*whole[:-1], 2 * whole[-1]],
            [*chunk.offsets[:-1], 2 * chunk.offsets[-1]],
        )
    writer.put(
        name,
        memory.dtype.name,
        memory.shape,
        memory.strides,
        memory.address,
        memory.owner,
        "other",
        master,
        "",
        number,
        box,
    )
    return True


class VarveStorageReader(StorageReader):
    """Loads a step with dcp.load, whoever saved it, and however its tensors were cut.

    `step` is a number or an expression such as "latest" or "best:loss" (see Store).
    """

    def __init__(
        self,
        path: Union[str, os.PathLike[str], None] = None,
        step: Union[int, str] = "latest",
    ) -> None:
        super().__init__()
        self._path: Optional[str] = None
        self._step = step
        self._store: Optional[_store.Store] = None
        self._checkpoint: Optional[Checkpoint] = None
        if path is not None:
            self.reset(path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, os.PathLike[str]]) -> bool:
        return os.fspath(checkpoint_id).startswith(_SCHEME)

    def reset(self, checkpoint_id: Union[str, os.PathLike[str], None] = None) -> None:
        self.close()
        if checkpoint_id is None:
            return
        self._path, step = _split_id(checkpoint_id)
        if step is not None:
            self._step = int(step) if step.isdecimal() else step

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store = self._checkpoint = None

    def read_metadata(self, *args: Any, **options: Any) -> Any:
        """All tensors and values of the step. NotFoundError names what is missing."""
        if self._path is None:
            raise InvalidArgumentError(
                f"a load needs a path: VarveStorageReader(path), or a checkpoint_id {_SCHEME}PATH@STEP"
            )
        self.close()
        self._store = _store.open(self._path)
        self._checkpoint = self._store[self._step]
        items: list[str] = []
        planner_data = None
        if _ITEM in self._checkpoint.list_bytes():
            tree = _trees.loads(self._checkpoint.read_bytes(_ITEM), f"item {_ITEM}")
            planner_data = _planner_data_of(tree["planner_data"])
            items = tree["items"]
        return Metadata(
            state_dict_metadata=_metadata_of(self._checkpoint, items, planner_data),
            planner_data=planner_data,
        )

    def set_up_storage_reader(
        self, metadata: Any, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        if self._checkpoint is None:
            self.read_metadata()

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        checkpoint = self._checkpoint
        if checkpoint is None:
            raise FailedPreconditionError("read_data comes after read_metadata")
        items, targets = [], []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                value = checkpoint.read_bytes(item.storage_index.fqn)
                planner.load_bytes(item, io.BytesIO(value))
            else:
                items.append(item)
                targets.append(planner.resolve_tensor(item).detach())
        if not _read_in_place(checkpoint, items, targets):
            _read_with_copies(checkpoint, items, targets)
        for item, target in zip(items, targets, strict=True):
            planner.commit_tensor(item, target)
        self.close()
        future = Future()
        future.set_result(None)
        return future


def _read_in_place(checkpoint: Checkpoint, items: list[Any], targets: list[Any]) -> bool:
    """False: not all targets are dense memory of the CPU and of the stored type. Nothing was read."""
    if not _arrays.learn_torch():
        return False
    names = [item.storage_index.fqn for item in items]
    return checkpoint._reader.read_torch(names, targets, [item.storage_offsets for item in items])


def _read_with_copies(checkpoint: Checkpoint, items: list[Any], targets: list[Any]) -> None:
    reads: list[tuple[str, int, int, list[tuple[int, int]]]] = []
    filled = []
    for item, target in zip(items, targets, strict=True):
        name = item.storage_index.fqn
        dtype = _dtypes.BY_NAME[checkpoint[name].dtype_name]
        memory = _memory_for(target, dtype)
        filled.append((target, memory))
        ranges = [
            (begin, begin + length)
            for begin, length in zip(item.storage_offsets, item.lengths, strict=True)
        ]
        if dtype.bits < 8:  # torch counts pairs of F4
            ranges[-1] = (2 * ranges[-1][0], 2 * ranges[-1][1])
        if memory.numel():
            num_bytes = memory.numel() * memory.element_size()
            reads.append((name, memory.data_ptr(), num_bytes, ranges))
    checkpoint._reader.read_many(reads)
    for target, memory in filled:
        if memory is not target:
            target.copy_(memory)


class _LazyDict(dict[Any, Any]):
    """A dict that makes a value when it is asked for it: a load of few tensors asks for few."""

    def __init__(self, keys: Iterable[Any], make: Callable[[Any], Any]) -> None:
        super().__init__(dict.fromkeys(keys, _MISSING))
        self._make = make

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if value is _MISSING:
            value = self._make(key)
            self[key] = value
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default

    # With a method of its own here, a copy of the dict takes values from __getitem__.
    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()

    def items(self) -> Any:
        return {key: self[key] for key in self}.items()

    def values(self) -> Any:
        return {key: self[key] for key in self}.values()

    def __reduce__(self) -> Any:
        return dict, (dict(self.items()),)


_MISSING = object()


@functools.cache
def _torch_kind(dtype_name: str) -> Any:
    """The dtype of torch, or None: this torch has none."""
    name = _dtypes.BY_NAME[dtype_name].torch
    return None if name is None else getattr(torch, name, None)


def _metadata_of(checkpoint: Checkpoint, items: list[str], planner_data: Any) -> _LazyDict:
    """What DCP asks of each tensor and value. The planner's data, where there is any, names them all."""
    of_items = set(items)
    if isinstance(planner_data, _LazyDict):
        names = list(planner_data)
    else:
        infos = checkpoint._infos().values()
        # What torch cannot hold, no state dict asks for.
        names = [info.name for info in infos if _torch_kind(info.dtype) is not None] + items
    num_asked = 0

    def make(name: str) -> Any:
        nonlocal num_asked
        if name in of_items:
            return BytesStorageMetadata()
        num_asked += 1
        checkpoint._expect(num_asked)
        info = checkpoint._find(name)
        shape = tuple(info.shape)
        if _dtypes.BY_NAME[info.dtype].bits < 8:
            shape = (*shape[:-1], shape[-1] // 2)
        size = torch.Size(shape)
        chunk = ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=size)
        properties = TensorProperties(dtype=_torch_kind(info.dtype))
        return TensorStorageMetadata(properties, size, [chunk])

    return _LazyDict(names, make)


def _planner_data_of(tree: Any) -> Any:
    decoder = _trees.Decoder(_no_tensor)
    pairs = tree.get("dict") if isinstance(tree, dict) else None
    # Looked at without a loop of Python, as there is a pair for each tensor.
    if (
        not isinstance(pairs, list)
        or not set(map(type, pairs)) <= {list}
        or not set(map(len, pairs)) <= {2}
        or not {type(key) for key, _ in pairs} <= {str}
    ):
        return decoder.build(tree)
    values = dict(pairs)
    return _LazyDict(values, lambda key: decoder.build(values[key]))


def _memory_for(target: Any, dtype: _dtypes.DType) -> Any:
    """The target, or memory from which it is filled: on a GPU, strided, of another type."""
    kind = getattr(torch, dtype.torch or "")
    if target.device.type == "cpu" and target.dtype == kind and target.is_contiguous():
        return target
    return torch.empty(target.shape, dtype=kind)


def _no_tensor(name: str) -> tuple[str, tuple[int, ...]]:
    raise InvalidArgumentError(f"the planner's data refers to a tensor {name}")
