# SPDX-License-Identifier: Apache-2.0
"""The C++ part of varve. Private: use the package varve."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


VERSION: str = '0.1.0'

def cuda_version() -> str:
    """
    The CUDA for which the module was built, such as "13.0". "": without CUDA.
    """

def end_callbacks() -> None:
    """Threads of varve call no Python from here on."""

def is_in_callback() -> bool:
    """Whether a thread of varve runs this."""

class CheckpointId:
    """A step of a run, by name."""

    @property
    def run(self) -> str: ...

    @property
    def step(self) -> int: ...

    def __repr__(self) -> str: ...

class CheckpointInfo:
    """What the store knows of a checkpoint without reading a tensor."""

    @property
    def run(self) -> str: ...

    @property
    def step(self) -> int: ...

    @property
    def created(self) -> Any:
        """datetime.datetime in UTC, to the microsecond."""

    @property
    def parent(self) -> CheckpointId | None:
        """The step it was saved against, or None."""

    @property
    def num_tensors(self) -> int: ...

    @property
    def logical_bytes(self) -> int:
        """Raw bytes of all tensors."""

    @property
    def new_bytes(self) -> int:
        """Raw bytes that were not in the store before."""

    @property
    def stored_bytes(self) -> int:
        """Encoded bytes of those."""

    @property
    def metrics(self) -> dict[str, float]: ...

    @property
    def tags(self) -> list[str]: ...

    def __repr__(self) -> str: ...

class RunInfo:
    """A run of a store."""

    @property
    def name(self) -> str: ...

    @property
    def forked_from(self) -> CheckpointId | None: ...

    @property
    def num_steps(self) -> int: ...

    def __repr__(self) -> str: ...

class TensorInfo:
    """What the store knows of a tensor."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> list[int]: ...

    @property
    def role(self) -> str: ...

    @property
    def derived_from(self) -> str: ...

    @property
    def alias_of(self) -> str: ...

    @property
    def logical_bytes(self) -> int: ...

    @property
    def num_chunks(self) -> int: ...

    @property
    def num_shards(self) -> int: ...

    @property
    def digest(self) -> str | None:
        """32 hexadecimal digits, or None where it is not known."""

    def __repr__(self) -> str: ...

class CodecUse:
    """Bytes of chunks by how they are predicted."""

    @property
    def codec(self) -> str: ...

    @property
    def num_chunks(self) -> int: ...

    @property
    def raw_bytes(self) -> int: ...

    @property
    def stored_bytes(self) -> int: ...

    def __repr__(self) -> str: ...

class CoderUse:
    """The same bytes by the coder of each plane."""

    @property
    def coder(self) -> str: ...

    @property
    def num_planes(self) -> int: ...

    @property
    def raw_bytes(self) -> int: ...

    @property
    def stored_bytes(self) -> int: ...

    def __repr__(self) -> str: ...

class SaveReport:
    """What a save stored, and what it cost."""

    @property
    def run(self) -> str: ...

    @property
    def step(self) -> int: ...

    @property
    def num_tensors(self) -> int: ...

    @property
    def logical_bytes(self) -> int:
        """Raw bytes of all tensors."""

    @property
    def new_bytes(self) -> int:
        """Raw bytes that were not in the store before."""

    @property
    def stored_bytes(self) -> int:
        """Encoded bytes of those."""

    @property
    def seconds(self) -> float: ...

    @property
    def by_codec(self) -> list[CodecUse]: ...

    @property
    def by_coder(self) -> list[CoderUse]: ...

    @property
    def warnings(self) -> list[str]: ...

    def __repr__(self) -> str: ...

class SaveStats:
    """What a save in the background did, and what it cost, in seconds."""

    @property
    def step(self) -> int: ...

    @property
    def error(self) -> str | None:
        """None when the save is durable."""

    @property
    def skipped(self) -> bool: ...

    @property
    def num_tensors(self) -> int: ...

    @property
    def logical_bytes(self) -> int: ...

    @property
    def changed_bytes(self) -> int: ...

    @property
    def staged_bytes(self) -> int: ...

    @property
    def new_bytes(self) -> int: ...

    @property
    def stored_bytes(self) -> int: ...

    @property
    def dropped_steps(self) -> int: ...

    @property
    def stall_seconds(self) -> float:
        """What the training waited."""

    @property
    def durable_seconds(self) -> float: ...

    @property
    def warnings(self) -> list[str]: ...

    def __repr__(self) -> str: ...

class PushStats:
    """What a push in the background did, and what it cost, in seconds."""

    @property
    def step(self) -> int:
        """The highest step that was due."""

    @property
    def error(self) -> str | None:
        """None when the step is in the object store."""

    @property
    def failures(self) -> int:
        """Pushes that failed, one after the other."""

    @property
    def snapshot(self) -> int: ...

    @property
    def sent_bytes(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    @property
    def delay_seconds(self) -> float:
        """How late it was: from when its first step became due until it ended."""

    @property
    def warning(self) -> str: ...

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class PushReport:
    """What a push sent."""

    @property
    def snapshot(self) -> int:
        """The snapshot that has it all. 0: there is none."""

    @property
    def is_new(self) -> bool:
        """This push made the snapshot."""

    @property
    def total_files(self) -> int: ...

    @property
    def total_bytes(self) -> int: ...

    @property
    def sent_files(self) -> int: ...

    @property
    def sent_bytes(self) -> int: ...

    @property
    def resumed_files(self) -> int:
        """Those that an interrupted push had sent already."""

    @property
    def seconds(self) -> float: ...

    def __repr__(self) -> str: ...

class PullReport:
    """What a pull fetched."""

    @property
    def snapshot(self) -> int: ...

    @property
    def num_steps(self) -> int:
        """0 in a dry run."""

    @property
    def total_files(self) -> int: ...

    @property
    def total_bytes(self) -> int: ...

    @property
    def fetched_files(self) -> int: ...

    @property
    def fetched_bytes(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    def __repr__(self) -> str: ...

class SnapshotInfo:
    """A snapshot in an object store."""

    @property
    def number(self) -> int: ...

    @property
    def created(self) -> Any:
        """datetime.datetime in UTC, by the clock of the host that pushed it."""

    @property
    def total_bytes(self) -> int: ...

    def __repr__(self) -> str: ...

class RemoteReclaimReport:
    """What a reclaim of an object store removed."""

    @property
    def dropped(self) -> list[int]:
        """Numbers of snapshots."""

    @property
    def kept(self) -> int: ...

    @property
    def removed_blobs(self) -> int: ...

    @property
    def removed_bytes(self) -> int: ...

    @property
    def pending_blobs(self) -> int:
        """Those of pushes that are under way, or may be."""

    def __repr__(self) -> str: ...

class TensorChange:
    """A step at which a tensor changed."""

    @property
    def step(self) -> int: ...

    @property
    def num_chunks(self) -> int: ...

    @property
    def changed_chunks(self) -> int: ...

    @property
    def changed_bytes(self) -> int:
        """Raw bytes of those."""

    @property
    def stored_bytes(self) -> int:
        """Encoded bytes stored for them."""

    def __repr__(self) -> str: ...

class ValueDiff:
    """How the elements of a tensor differ."""

    @property
    def num_elements(self) -> int: ...

    @property
    def changed_elements(self) -> int: ...

    @property
    def max_abs(self) -> float:
        """max |b - a|"""

    @property
    def relative_norm(self) -> float:
        """||b - a|| / ||a||"""

    @property
    def new_nans(self) -> int:
        """Elements that are NaN in b and not in a."""

    def __repr__(self) -> str: ...

class TensorDiff:
    """A tensor that differs between two steps."""

    @property
    def name(self) -> str: ...

    @property
    def shard(self) -> int: ...

    @property
    def reshaped(self) -> bool:
        """Another dtype or shape, or a shard that only one step has."""

    @property
    def num_chunks(self) -> int: ...

    @property
    def changed_chunks(self) -> int: ...

    @property
    def changed_bytes(self) -> int: ...

    @property
    def values(self) -> ValueDiff | None:
        """ValueDiff when it was asked for and can be had."""

    def __repr__(self) -> str: ...

class CheckpointDiff:
    """What differs between two checkpoints."""

    @property
    def added(self) -> list[str]: ...

    @property
    def removed(self) -> list[str]: ...

    @property
    def changed(self) -> list[TensorDiff]: ...

    @property
    def unchanged(self) -> list[str]: ...

    def __repr__(self) -> str: ...

class ReclaimReport:
    """What a reclaim gave back."""

    @property
    def freed_bytes(self) -> int: ...

    @property
    def rewritten_bytes(self) -> int: ...

    @property
    def pending_bytes(self) -> int: ...

    @property
    def disk_bytes_before(self) -> int: ...

    @property
    def disk_bytes_after(self) -> int: ...

    @property
    def warnings(self) -> list[str]:
        """Messages about damaged records. Only a group has any."""

    def __repr__(self) -> str: ...

class DropReport:
    """What a drop did."""

    @property
    def dropped(self) -> list[CheckpointId]: ...

    @property
    def reclaim(self) -> ReclaimReport: ...

    @property
    def warnings(self) -> list[str]: ...

    def __repr__(self) -> str: ...

class DropForecast:
    """What a drop would give back."""

    @property
    def freed_now(self) -> int: ...

    @property
    def freed_later(self) -> int: ...

    @property
    def warnings(self) -> list[str]: ...

    def __repr__(self) -> str: ...

class RetentionDecision:
    """Whether a policy keeps a step, and why."""

    @property
    def run(self) -> str: ...

    @property
    def step(self) -> int: ...

    @property
    def keep(self) -> bool: ...

    @property
    def reasons(self) -> list[str]: ...

    def __repr__(self) -> str: ...

class RewindReport:
    """Where a rewind moved the later steps."""

    @property
    def fork(self) -> str:
        """The run that holds them. Empty: there were none."""

    @property
    def moved(self) -> list[int]: ...

    def __repr__(self) -> str: ...

class CheckReport:
    """What a check of the store found."""

    @property
    def ok(self) -> bool:
        """True: no error."""

    @property
    def errors(self) -> list[str]: ...

    @property
    def warnings(self) -> list[str]:
        """
        Messages about SYNCED, BACKUP and copies in spare/ that are missing, damaged or out of date. These files help to find and to repair damage.
        """

    @property
    def damaged_steps(self) -> list[CheckpointId]:
        """
        The steps that cannot be read whole. With `read_data` all of them, else only those of which something is missing.
        """

    @property
    def num_steps(self) -> int: ...

    @property
    def num_tensors(self) -> int: ...

    @property
    def num_chunks(self) -> int: ...

    @property
    def bytes_read(self) -> int: ...

    @property
    def is_sealed(self) -> bool: ...

    @property
    def num_sealed_files(self) -> int: ...

    def __repr__(self) -> str: ...

class StoreStats:
    """Sizes of a store, in bytes."""

    @property
    def format_version(self) -> int: ...

    @property
    def num_runs(self) -> int: ...

    @property
    def num_steps(self) -> int: ...

    @property
    def num_chunks(self) -> int: ...

    @property
    def logical_bytes(self) -> int: ...

    @property
    def unique_bytes(self) -> int: ...

    @property
    def stored_bytes(self) -> int: ...

    @property
    def pending_bytes(self) -> int: ...

    @property
    def disk_bytes(self) -> int: ...

    @property
    def num_files(self) -> int: ...

    @property
    def by_codec(self) -> list[CodecUse]: ...

    @property
    def by_coder(self) -> list[CoderUse]: ...

    @property
    def warnings(self) -> list[str]: ...

    def __repr__(self) -> str: ...

class BackupReport:
    """What a backup copied."""

    @property
    def num_steps(self) -> int: ...

    @property
    def copied_files(self) -> int: ...

    @property
    def copied_bytes(self) -> int: ...

    @property
    def total_bytes(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    def __repr__(self) -> str: ...

class TrainerProgress:
    """What a trainer remembers besides tensors."""

    def __init__(self) -> None: ...

    @property
    def global_step(self) -> int: ...

    @global_step.setter
    def global_step(self, arg: int, /) -> None: ...

    @property
    def epoch(self) -> int: ...

    @epoch.setter
    def epoch(self, arg: int, /) -> None: ...

    @property
    def consumed_samples(self) -> int: ...

    @consumed_samples.setter
    def consumed_samples(self, arg: int, /) -> None: ...

    @property
    def best_metric(self) -> float: ...

    @best_metric.setter
    def best_metric(self, arg: float, /) -> None: ...

    @property
    def last_loss(self) -> float: ...

    @last_loss.setter
    def last_loss(self, arg: float, /) -> None: ...

    @property
    def lr_scheduler(self) -> dict[str, int | float | str | list[float]]: ...

    @lr_scheduler.setter
    def lr_scheduler(self, arg: Mapping[str, int | float | str | Sequence[float]], /) -> None: ...

    @property
    def loss_scaler(self) -> dict[str, int | float | str | list[float]]: ...

    @loss_scaler.setter
    def loss_scaler(self, arg: Mapping[str, int | float | str | Sequence[float]], /) -> None: ...

    @property
    def extra(self) -> dict[str, int | float | str | list[float]]: ...

    @extra.setter
    def extra(self, arg: Mapping[str, int | float | str | Sequence[float]], /) -> None: ...

    @property
    def rng(self) -> list[tuple[int, str, bytes]]:
        """A list of (rank, generator, state)."""

    @rng.setter
    def rng(self, arg: Sequence[tuple[int, str, bytes]], /) -> None: ...

class Writer:
    """A save in progress."""

    def put(self, name: str, dtype: str, shape: Sequence[int], strides: Sequence[int], address: int, owner: object, role: str, derived_from: str, alias_of: str, shard: int = 0, box: tuple[Sequence[int], Sequence[int]] | None = None) -> None:
        """
        Adds a tensor. `strides` counts elements, and is empty for a dense tensor.
        `address` is memory of `owner`, which lives until the save is over. `box` says that this
        is part number `shard` of a tensor: the shape of the whole, and the part's offsets.
        """

    def put_torch(self, name: str, tensor: object, role: str, derived_from: str, alias_of: str, shard: int = 0, box: tuple[Sequence[int], Sequence[int]] | None = None) -> bool:
        """
        Adds a plain tensor of torch on the CPU. False: it is something else, for `put`.
        """

    def put_bytes(self, name: str, value: bytes) -> None: ...

    def set_progress(self, progress: TrainerProgress) -> None: ...

    def set_metric(self, name: str, value: float) -> None: ...

    def add_tag(self, tag: str) -> None: ...

    def commit(self) -> SaveReport: ...

    def abandon(self) -> None: ...

class Reader:
    """A checkpoint that is open for reading."""

    def info(self) -> CheckpointInfo: ...

    def list_tensors(self) -> list[TensorInfo]: ...

    def find(self, name: str) -> TensorInfo: ...

    def read_many(self, reads: Sequence[tuple[str, int, int, Sequence[tuple[int, int]]]]) -> None:
        """
        Fills memory: a list of (name, address, bytes, one (begin, end) an axis or none).
        """

    def read_torch(self, names: Sequence[str], tensors: list[Any], offsets: Sequence[Sequence[int]] | None = None) -> bool:
        """
        Fills plain dense tensors of torch on the CPU, whole or from these offsets on. False: they
        are something else, or of other dtypes when there are offsets. Nothing was read.
        """

    def list_bytes(self) -> list[str]: ...

    def read_bytes(self, name: str) -> bytes: ...

    def read_progress(self) -> TrainerProgress | None: ...

class Store:
    """An open store."""

    def close(self) -> None: ...

    @property
    def path(self) -> str: ...

    @property
    def is_open(self) -> bool: ...

    def list_runs(self) -> list[RunInfo]: ...

    def list_checkpoints(self, run: str) -> list[CheckpointInfo]: ...

    def open_checkpoint(self, run: str, step: int) -> Reader: ...

    def resolve(self, expression: str) -> tuple[str, int]: ...

    def log(self, run: str, tensor: str) -> list[TensorChange]: ...

    def diff(self, before: tuple[str, int], after: tuple[str, int], values: bool) -> CheckpointDiff: ...

    def check(self, read_data: bool, read_data_fraction: float, progress: object | None) -> CheckReport: ...

    def stats(self) -> StoreStats: ...

    def catch_up(self) -> None: ...

    def begin(self, step: int, run: str, on_existing: str, parent: int | None, verify_sharing: bool, compression: str | None, num_threads: int, progress: object | None) -> Writer: ...

    def set_metrics(self, id: tuple[str, int], metrics: Mapping[str, float]) -> None: ...

    def set_tag(self, id: tuple[str, int], tag: str) -> None: ...

    def remove_tag(self, run: str, tag: str) -> None: ...

    def fork(self, run: str, new_run: str, at: int | None) -> int: ...

    def rewind(self, run: str, to: int) -> RewindReport: ...

    def decide_forget(self, run: str, keep_last: int, keep_every: int, keep_best: Sequence[tuple[str, bool, int]], keep_within_seconds: int, keep_tags: Sequence[str]) -> list[RetentionDecision]: ...

    def forecast_drop(self, ids: Sequence[tuple[str, int]]) -> DropForecast: ...

    def drop(self, ids: Sequence[tuple[str, int]], reclaim: bool) -> DropReport: ...

    def reclaim(self, all: bool) -> ReclaimReport: ...

    def copy_to(self, destination: Store, ids: Sequence[tuple[str, int]], run: str, on_existing: str, progress: object | None) -> list[SaveReport]: ...

def open(path: str, mode: str, compression: str, entropy: str, pipeline_budget_bytes: int, num_threads: int, key: bytes) -> Store: ...

def backup(store: str, destination: str, read_data: bool, progress: object | None) -> BackupReport: ...

def export_bfloat16(address: int, shape: Sequence[int], owner: object) -> Any:
    """An array with __dlpack__ over dense bfloat16 memory of `owner`."""

class RemoteOptions:
    """What a checkpointer pushes, and where to."""

    @staticmethod
    def make(url: str, interval: int, keep: int, retention_waits: bool, failure_is_fatal: bool, close_timeout: float) -> RemoteOptions: ...

def push(store: str, url: str, steps: Sequence[str], dry_run: bool, num_threads: int, progress: object | None) -> PushReport: ...

def pull(url: str, destination: str, snapshot: int | None, dry_run: bool, read_data: bool, num_threads: int, progress: object | None) -> PullReport: ...

def open_remote(url: str, snapshot: int | None, cache_folder: str, cache_bytes: int, pipeline_budget_bytes: int, num_threads: int) -> Store: ...

def snapshots(url: str) -> list[SnapshotInfo]: ...

def reclaim_remote(url: str, keep_last: int | None, dry_run: bool, wait_for_pushes: float) -> RemoteReclaimReport: ...

class RetentionPolicy:
    """Which steps stay after a save."""

    @staticmethod
    def make(keep_last: int, keep_every: int, keep_best: Sequence[tuple[str, bool, int]], keep_within_seconds: int, keep_tags: Sequence[str]) -> RetentionPolicy: ...

class OptimizerStep:
    """What a step of Adam or AdamW did."""

    @staticmethod
    def make(number: int, gradient_scale: float, groups: Sequence[tuple[float, float, float, float, float]], parameters: Sequence[tuple[str, str, str, int]]) -> OptimizerStep:
        """
        A group is (lr, beta1, beta2, eps, weight_decay), a parameter the names of
        (weight, first moment, second moment) and the number of its group.
        """

class Checkpointer:
    """Saves in the background of a training."""

    @property
    def store(self) -> Store: ...

    def begin_save(self, step: int, names: list[str], roles: list[str], values: list[Any], num_lent: int, items: Sequence[tuple[str, bytes]], progress: TrainerProgress, metrics: Mapping[str, float], tags: Sequence[str], optimizer_step: OptimizerStep | None) -> bool | None:
        """
        Starts a save of plain tensors of torch on the CPU, or dense on a GPU of use_devices.
        Those from number `num_lent` on are on the CPU, and copied. A tuple (dtype, shape,
        strides, address, owner, device) stands for any other tensor. The device is -1 for the
        CPU. False: the step is skipped. None: a tuple is needed for one of the values.
        """

    def use_devices(self, devices: Sequence[int], current_stream: Callable[[int], int]) -> None:
        """
        Names the GPUs whose tensors saves and loads will be given, once, before the first of
        them. `current_stream(device)` gives the stream whose work comes before a save or load.
        UnavailableError: their tensors have to be copied to the CPU. It says why.
        """

    def await_staged(self) -> None: ...

    def require_awaited(self) -> None: ...

    def wait(self) -> None: ...

    def restore(self, step: str, names: list[str], roles: list[str], values: list[Any]) -> int | None:
        """
        Fills the memory of tensors, to go on from a step. Returns its number, or None as above.
        """

    def last_stats(self) -> SaveStats | None: ...

    def last_push(self) -> PushStats | None: ...

    def close(self) -> None: ...

def open_checkpointer(path: str, run: str, on_existing: str, when_busy: str, compression: str, staging_budget_bytes: int, pipeline_budget_bytes: int, num_threads: int, retries: int, check_staging: float, retention: RetentionPolicy | None, has_gpus: bool, remote: RemoteOptions | None, on_push: object, key: bytes) -> Checkpointer: ...

def start_epoch(root: str, num_ranks: int) -> int: ...

def join(root: str, rank: int, epoch: int, timeout_ms: int, compression: str, pipeline_budget_bytes: int, num_threads: int) -> Store: ...

def is_group(path: str) -> bool: ...

class Stage:
    """A copy of memory that takes what has changed."""

    def __init__(self) -> None: ...

    def update(self, regions: Sequence[tuple[int, int, int]], num_threads: int) -> int:
        """
        Makes each copy equal to its source: (source, copy, bytes), each time the same copies in
        the same order. Returns how many bytes were copied.
        """

def import_files(store: Store, files: Sequence[str], format: str, step: int | None, run: str, on_existing: str, parent: int | None, tags: Sequence[str], progress: object | None) -> tuple[SaveReport, list[str]]:
    """
    Saves what files of other formats hold. Returns the report and notes for the user.
    """

def export_files(reader: Reader, out: str, format: str, include: Sequence[str], exclude: Sequence[str], max_shard_bytes: int | None, overwrite: bool, progress: object | None) -> tuple[list[str], list[str]]:
    """
    Writes a checkpoint in another format. Returns the files and notes for the user.
    """

def add_torch_type(type: object) -> bool:
    """
    Lets calls that take tensors of torch know this type. False: it has no exchange API.
    """

def layouts_of(tensors: list[Any]) -> bytes | None:
    """
    Bytes that are equal where devices, addresses, dtypes, shapes and strides of tensors are.
    None: not all are plain tensors of torch on the CPU or a GPU of NVIDIA.
    """

def find_masters(names: Sequence[str], tensors: list[Any]) -> dict[str, str]:
    """
    Which BF16 tensors seem to be rounded copies: their names and those of the FP32 tensors.
    """
