# SPDX-License-Identifier: Apache-2.0
"""A folder of checkpoints that share what did not change."""

from __future__ import annotations

import datetime
import operator
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Optional, Union, overload

from . import _core, _remote
from ._checkpoint import Checkpoint
from ._display import html_table, human_bytes, human_metrics
from ._errors import InvalidArgumentError, NotFoundError
from ._progress import ProgressLike, Reporter
from ._step import Step
from ._tree import flatten

StepLike = Union[int, str, _core.CheckpointInfo, _core.CheckpointId]
Path = _remote.Path


class StepList(list[_core.CheckpointInfo]):
    """The checkpoints of a run by rising step."""

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with one row a step and one column a metric. Imports pandas."""
        import pandas

        plain = (
            "run",
            "step",
            "created",
            "num_tensors",
            "logical_bytes",
            "new_bytes",
            "stored_bytes",
            "tags",
        )
        rows = [{**{name: getattr(info, name) for name in plain}, **info.metrics} for info in self]
        return pandas.DataFrame(rows)

    def _repr_html_(self) -> str:
        rows = [
            (
                info.step,
                f"{info.created:%Y-%m-%d %H:%M:%S}",
                human_bytes(info.logical_bytes),
                human_bytes(info.stored_bytes),
                human_metrics(info.metrics),
                ", ".join(info.tags),
            )
            for info in self
        ]
        return html_table(
            f"{len(self)} steps",
            ("step", "created (UTC)", "bytes", "stored", "metrics", "tags"),
            rows,
        )


class RunList(list[_core.RunInfo]):
    """The runs of a store by name."""

    def _repr_html_(self) -> str:
        rows = [
            (run.name, run.num_steps, "-" if run.forked_from is None else run.forked_from)
            for run in self
        ]
        return html_table(f"{len(self)} runs", ("run", "steps", "forked from"), rows)


@dataclass(frozen=True)
class ForgetReport:
    """What `Store.forget` decided for each step of a run, and what it did.

    A dry run sets `forecast`, what the drop would give back. Otherwise `drop` is set. Both are None when
    every step is kept.
    """

    decisions: list[_core.RetentionDecision]
    forecast: Optional[_core.DropForecast]
    drop: Optional[_core.DropReport]

    @property
    def kept(self) -> list[int]:
        return [decision.step for decision in self.decisions if decision.keep]

    @property
    def dropped(self) -> list[int]:
        """Steps that are dropped, or would be."""
        return [decision.step for decision in self.decisions if not decision.keep]


def open(  # noqa: A001  (as h5py and zarr call it)
    path: Path,
    mode: str = "r",
    *,
    compression: str = "auto",
    entropy: str = "auto",
    pipeline_budget_bytes: int = 256 << 20,
    num_threads: int = 0,
    key: bytes = b"",
    snapshot: Optional[int] = None,
    cache_folder: Optional[Path] = None,
    cache_bytes: int = 4 << 30,
) -> Store:
    """Opens the store, or the root of a group, in a folder, or a snapshot in an object store.

    `mode` "r" reads, also while a writer is at work in another process. It takes no lock and writes
    nothing. "a" reads and writes, and makes the store when there is none. "w" makes a store where none is.
    It never replaces one. `compression` is "auto", "none", "fast" or "max". `entropy` is "auto", "zstd" or
    "rans", and a store that is made with "zstd" can be read by older versions. `pipeline_budget_bytes` is
    what a save may hold besides the state. `num_threads` 0 is one for each core. `key` is that of a sealed
    store, 16 to 1,024 secret bytes. A store that is made with a key is sealed: writers need the key, and
    `Store.check` of a store that was opened with its key finds what others have changed.

    A URL such as "s3://bucket/gpt" is opened where it lies, for reading only. What is read is fetched, and
    nothing else. `snapshot` is a number, by default that of the newest. Parts of files that were fetched stay
    in `cache_folder`, which several processes may share, up to `cache_bytes`.

    NotFoundError: no store there. AlreadyExistsError: "w", and there is one. LockedError: another writer
    has it. FailedPreconditionError: the folder holds something else.
    """
    text = os.fspath(path)
    if _remote.looks_like_url(text):
        if mode != "r":
            raise InvalidArgumentError(
                f'mode "{mode}" with {text}: a store in an object store is opened with "r". Save to a '
                "folder, and send it with varve.push"
            )
        if key:
            raise InvalidArgumentError(
                f"{text}: a key was given, and snapshots in an object store have no seal"
            )
        cache = "" if cache_folder is None else os.fspath(cache_folder)
        return Store(
            _core.open_remote(
                text, snapshot, cache, cache_bytes, pipeline_budget_bytes, num_threads
            ),
            mode,
        )
    if snapshot is not None or cache_folder is not None:
        raise InvalidArgumentError(
            f"snapshot and cache_folder are for URLs, and {text} is a folder"
        )
    return Store(
        _core.open(text, mode, compression, entropy, pipeline_budget_bytes, num_threads, key),
        mode,
    )


def backup(
    store: Path,
    destination: Path,
    *,
    read_data: bool = False,
    progress: ProgressLike = None,
) -> _core.BackupReport:
    """Makes or updates a consistent copy of a store, also while a writer is at work in it.

    `read_data`: also reads and decodes every chunk of the copy. One rename makes the copy the new one, so
    that a crash leaves the old or the new. The C++ header varve/backup.h lists the errors.
    """
    with Reporter(progress, "backup") as report:
        return _core.backup(os.fspath(store), os.fspath(destination), read_data, report)


class Store:
    """An open store. Made by `varve.open`.

    A *step* in these calls is a number of the run main, an expression such as "latest", "best:loss",
    "best:accuracy:max", "run@100" or a tag, or an item of `steps`. Calls that change the store are durable on
    return. `progress` True shows a bar of tqdm, of rich, or of plain text. A function is called with bytes
    done and in all from a thread of varve, and must not call into the store. Thread rule: any number of
    threads. `close` waits for their calls, and then all that came from the store is closed, too: a call
    gives FailedPreconditionError. In a forked child each call gives ForkedError.
    """

    def __init__(self, handle: _core.Store, mode: str) -> None:
        self._handle = handle
        self._mode = mode

    @property
    def path(self) -> str:
        return self._handle.path

    @property
    def mode(self) -> str:
        return self._mode

    @property
    def closed(self) -> bool:
        return not self._handle.is_open

    def close(self) -> None:
        """Waits for calls in other threads, abandons saves that are not committed, and closes."""
        self._handle.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    # Saving

    @overload
    def save(
        self,
        step: int,
        tree: None = None,
        *,
        run: str = "main",
        metrics: Mapping[str, float] = ...,
        tags: Union[str, Iterable[str]] = ...,
        state: Optional[Mapping[str, Any]] = None,
        on_existing: str = "error",
        parent: Optional[int] = None,
        verify_sharing: bool = False,
        compression: Optional[str] = None,
        num_threads: int = 0,
        progress: ProgressLike = None,
    ) -> Step: ...

    @overload
    def save(
        self,
        step: int,
        tree: Union[Mapping[Any, Any], Sequence[Any]],
        *,
        run: str = "main",
        metrics: Mapping[str, float] = ...,
        tags: Union[str, Iterable[str]] = ...,
        state: Optional[Mapping[str, Any]] = None,
        on_existing: str = "error",
        parent: Optional[int] = None,
        verify_sharing: bool = False,
        compression: Optional[str] = None,
        num_threads: int = 0,
        progress: ProgressLike = None,
    ) -> _core.SaveReport: ...

    def save(
        self,
        step: int,
        tree: Union[Mapping[Any, Any], Sequence[Any], None] = None,
        *,
        run: str = "main",
        metrics: Mapping[str, float] = {},  # noqa: B006  (only read)
        tags: Union[str, Iterable[str]] = (),
        state: Optional[Mapping[str, Any]] = None,
        on_existing: str = "error",
        parent: Optional[int] = None,
        verify_sharing: bool = False,
        compression: Optional[str] = None,
        num_threads: int = 0,
        progress: ProgressLike = None,
    ) -> Union[Step, _core.SaveReport]:
        """Saves a checkpoint: of a tree of arrays at once, or step by step in a `with` block.

        `tree` is a nested dict, list or tuple. Keys and indices joined by "." are the names. Numbers become
        0-d tensors. Without a tree the result is a Step, which commits at the end of its block and abandons
        on an exception. `on_existing` "error" refuses a step that exists, "replace" swaps it, and "fork"
        moves it and later ones to a new run. `parent` is the step to compare with, the newest when None.
        Memory: arrays are read in place and must not change until the save is over.
        """
        reporter = Reporter(progress, f"save {run}@{step}")
        try:
            writer = self._handle.begin(
                operator.index(step),
                run,
                on_existing,
                parent,
                verify_sharing,
                compression,
                num_threads,
                reporter.function,
            )
        except BaseException:
            reporter.close(complete=False)
            raise
        begun = Step(writer, metrics, tags, reporter)
        try:
            if state is not None:
                begun.state = state
            if tree is None:
                return begun
            for name, array in flatten(tree):
                begun.put(name, array)
            return begun.commit()
        except BaseException:
            begun.abandon()
            raise

    def import_files(
        self,
        files: Union[str, os.PathLike[str], Iterable[Union[str, os.PathLike[str]]]],
        step: Optional[int] = None,
        *,
        format: str,  # noqa: A002
        run: str = "main",
        tags: Union[str, Iterable[str]] = (),
        on_existing: str = "error",
        parent: Optional[int] = None,
        progress: ProgressLike = None,
    ) -> _core.SaveReport:
        """Saves what files of another format hold, as `varve import` does.

        `format` is "safetensors", "torch", "dcp", "npz", "infinitrain" or "llmc". Folders and `*.index.json`
        stand for their files. Nothing in a file is executed. Without `step` it is the one that the files
        say. What a user should know comes as a warning. InvalidArgumentError names the file, the place in
        it, what was found and what was expected. Nothing is saved then.
        """
        paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
        with Reporter(progress, f"import {run}") as function:
            report, notes = _core.import_files(
                self._handle,
                [os.fspath(path) for path in paths],
                format,
                None if step is None else operator.index(step),
                run,
                on_existing,
                parent,
                [tags] if isinstance(tags, str) else list(tags),
                function,
            )
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return report

    # Looking

    def __getitem__(self, step: StepLike) -> Checkpoint:
        """Opens a checkpoint. NotFoundError names what is missing."""
        return Checkpoint(self._handle.open_checkpoint(*self._resolve(step)))

    def __contains__(self, step: StepLike) -> bool:
        try:
            self[step]
        except NotFoundError:
            return False
        return True

    def runs(self) -> RunList:
        return RunList(self._handle.list_runs())

    def steps(self, run: str = "main") -> StepList:
        """The checkpoints of a run by rising step. NotFoundError: no such run."""
        return StepList(self._handle.list_checkpoints(run))

    def log(self, tensor: str, *, run: str = "main") -> list[_core.TensorChange]:
        """The steps of a run at which a tensor changed. NotFoundError: no step has such a tensor."""
        return self._handle.log(run, tensor)

    def diff(
        self, before: StepLike, after: StepLike, *, values: bool = False
    ) -> _core.CheckpointDiff:
        """What differs between two checkpoints. `values`: reads what changed and compares elements."""
        return self._handle.diff(self._resolve(before), self._resolve(after), values)

    def catch_up(self) -> None:
        """Shows a store opened with "r" everything that is committed by now."""
        self._handle.catch_up()

    # Changing

    def tag(self, step: StepLike, tag: str) -> None:
        """Makes a tag name this checkpoint, and no other of its run any more."""
        self._handle.set_tag(self._resolve(step), tag)

    def untag(self, tag: str, *, run: str = "main") -> None:
        """Removes a tag, and no checkpoint. NotFoundError names run and tag."""
        self._handle.remove_tag(run, tag)

    def set_metrics(self, step: StepLike, metrics: Mapping[str, float]) -> None:
        """Adds metrics to a checkpoint. A name that it has already gets the new value."""
        self._handle.set_metrics(self._resolve(step), dict(metrics))

    def fork(self, run: str, new_run: str, *, at: Optional[int] = None) -> int:
        """Starts a run from a step of another, the newest when None. Copies no chunk. Returns the step."""
        return self._handle.fork(run, new_run, at)

    def rewind(self, run: str, to: int) -> _core.RewindReport:
        """Makes `to` the newest step of a run. The later steps move to a new run, as the report says."""
        return self._handle.rewind(run, operator.index(to))

    # Space

    def forget(
        self,
        run: str = "main",
        *,
        keep_last: int = 0,
        keep_every: int = 0,
        keep_best: Union[str, Iterable[str]] = (),
        keep_within: Union[datetime.timedelta, int] = 0,
        keep_tags: Union[str, Iterable[str]] = (),
        dry_run: bool = False,
        reclaim: bool = True,
    ) -> ForgetReport:
        """Drops the steps of a run that no rule keeps.

        `keep_best` is "METRIC:N", "METRIC:max:N" or several of them: the N steps with the lowest or highest
        value. `keep_within` is seconds before the newest step. A tag "*" is any tag. `dry_run`: changes
        nothing. InvalidArgumentError: no rule, or one that keeps no step.
        """
        within = (
            keep_within.total_seconds()
            if isinstance(keep_within, datetime.timedelta)
            else keep_within
        )
        decisions = self._handle.decide_forget(
            run,
            keep_last,
            keep_every,
            [_parse_best(text) for text in _strings(keep_best)],
            int(within),
            _strings(keep_tags),
        )
        ids = [(run, decision.step) for decision in decisions if not decision.keep]
        if not ids:
            return ForgetReport(decisions, None, None)
        if dry_run:
            return ForgetReport(decisions, self._handle.forecast_drop(ids), None)
        return ForgetReport(decisions, None, self._handle.drop(ids, reclaim))

    def drop(
        self, steps: Union[StepLike, Iterable[StepLike]], *, reclaim: bool = True
    ) -> _core.DropReport:
        """Drops checkpoints. NotFoundError names every one that is missing, and nothing is dropped then.

        Ctrl-C ends the reclaim that follows, when the steps are dropped. The next one frees the rest.
        """
        return self._handle.drop(self._resolve_all(steps), reclaim)

    def reclaim(self, *, all: bool = False) -> _core.ReclaimReport:  # noqa: A002
        """Gives the space of dead chunks back. `all`: also from files that are more than half alive.

        Ctrl-C ends it between two files. The next one frees the rest.
        """
        return self._handle.reclaim(all)

    def check(
        self,
        *,
        read_data: bool = False,
        read_data_fraction: float = 1.0,
        progress: ProgressLike = None,
    ) -> _core.CheckReport:
        """Verifies the store and changes nothing. A damaged store gives a report whose `ok` is False."""
        with Reporter(progress, "check") as report:
            return self._handle.check(read_data, read_data_fraction, report)

    def stats(self) -> _core.StoreStats:
        return self._handle.stats()

    def copy_to(
        self,
        destination: Union[Store, Path],
        steps: Union[StepLike, Iterable[StepLike], None] = None,
        *,
        run: str = "",
        on_existing: str = "error",
        progress: ProgressLike = None,
    ) -> list[_core.SaveReport]:
        """Saves checkpoints in another store, all of them when `steps` is None.

        `destination` is a store, or a path that is opened with "a" and closed. `run` "" keeps the
        run of each step. The first error, or Ctrl-C, ends the copy. The steps that were copied by then stay.
        """
        if not isinstance(destination, Store):
            with open(destination, "a") as store:
                return self.copy_to(
                    store, steps, run=run, on_existing=on_existing, progress=progress
                )
        if steps is None:
            ids = [(info.run, info.step) for each in self.runs() for info in self.steps(each.name)]
        else:
            ids = self._resolve_all(steps)
        reports = []
        with Reporter(progress, "copy") as report:
            for one in ids:
                reports += self._handle.copy_to(
                    destination._handle, [one], run, on_existing, report
                )
        return reports

    # Showing

    def __repr__(self) -> str:
        if self.closed:
            return f"<varve.Store {self.path!r}, closed>"
        runs = ", ".join(f"{run.name} ({run.num_steps} steps)" for run in self.runs())
        return f"<varve.Store {self.path!r}, mode {self._mode!r}: {runs or 'empty'}>"

    def _repr_html_(self) -> str:
        if self.closed:
            return html_table(f"Store {self.path}, closed", (), ())
        rows = []
        for run in self.runs():
            steps = self.steps(run.name)
            newest = steps[-1] if steps else None
            rows.append(
                (
                    run.name,
                    run.num_steps,
                    newest.step if newest else "-",
                    human_bytes(newest.logical_bytes) if newest else "-",
                    human_metrics(newest.metrics) if newest else "",
                )
            )
        return html_table(
            f"Store {self.path}", ("run", "steps", "newest", "bytes", "metrics"), rows
        )

    def _ipython_key_completions_(self) -> list[Union[str, int]]:
        names: list[Union[str, int]] = ["latest"]
        for run in self.runs():
            prefix = "" if run.name == "main" else f"{run.name}@"
            steps = self.steps(run.name)
            names += [f"{prefix}{info.step}" if prefix else info.step for info in steps]
            names += [f"{prefix}{tag}" for info in steps for tag in info.tags]
        return names

    def _resolve(self, step: StepLike) -> tuple[str, int]:
        if isinstance(step, str):
            return self._handle.resolve(step)
        if isinstance(step, (_core.CheckpointInfo, _core.CheckpointId)):
            return step.run, step.step
        try:
            return "main", operator.index(step)
        except TypeError:
            raise InvalidArgumentError(
                f"a step is a number or an expression, not {step!r}"
            ) from None

    def _resolve_all(self, steps: Union[StepLike, Iterable[StepLike]]) -> list[tuple[str, int]]:
        if isinstance(steps, (str, _core.CheckpointInfo, _core.CheckpointId)) or not isinstance(
            steps, Iterable
        ):
            steps = [steps]
        return [self._resolve(step) for step in steps]


def _strings(value: Union[str, Iterable[str]]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _parse_best(text: str) -> tuple[str, bool, int]:
    """ "loss:3", "accuracy:max:1" and "loss" as metric, whether the highest is best, and count."""
    rest, _, last = text.rpartition(":")
    count = 1
    if last.isdecimal() and rest:
        text, count = rest, int(last)
    metric, _, order = text.rpartition(":")
    if metric and order in ("min", "max"):
        return metric, order == "max", count
    if not text:
        raise InvalidArgumentError("keep_best names no metric")
    return text, False, count
