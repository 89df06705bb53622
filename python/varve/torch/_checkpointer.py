# SPDX-License-Identifier: Apache-2.0
"""Checkpointer: saves a training in one process in the background, and goes on from a step exactly."""

from __future__ import annotations

import atexit
import datetime
import logging
import operator
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import torch

from .. import _arrays, _core, _remote, _store
from .._errors import (
    Error,
    FailedPreconditionError,
    ForkedError,
    InvalidArgumentError,
    NotFoundError,
)
from . import _gpu, _state_dict, _training, _trees
from ._capture import Capture, State
from ._optimizer_steps import OptimizerSteps

_CPU = -1  # as the number of a GPU
_LOG = logging.getLogger("varve")


class Checkpointer:
    """Saves and restores a training in one process.

        with varve.torch.Checkpointer("ckpt", save_every=100, keep_last=3) as ckpt:
            start = ckpt.restore(model=model, optimizer=optimizer)    # None, or the step
            for step in range(0 if start is None else start + 1, num_steps):
                ...
                optimizer.step()
                if ckpt.after_step(step, metrics={"loss": loss.item()}):
                    break                                             # a signal came, and all is saved

    `after_step` returns while threads of varve, which need no GIL, still read the parameters and the
    optimizer's state. They must not change until `before_optimizer_step`, which a hook of the optimizer
    calls. Buffers and all other state are copied in `after_step`. A save whose tensors were changed too
    early is never committed. Thread rule: one thread, that of the training.
    """

    def __init__(
        self,
        path: _store.Path,
        *,
        run: str = "main",
        save_every: int = 1,
        keep_last: int = 0,
        keep_every: int = 0,
        keep_best: Union[str, Iterable[str]] = (),
        keep_within: Union[datetime.timedelta, int] = 0,
        keep_tags: Union[str, Iterable[str]] = (),
        on_existing: str = "error",
        when_busy: str = "wait",
        compression: str = "auto",
        staging_budget_bytes: int = 0,
        pipeline_budget_bytes: int = 256 << 20,
        num_threads: int = 0,
        retries: int = 0,
        check_staging: float = 0.0,
        stop_signals: Iterable[int] = (),
        key: bytes = b"",
        remote: Optional[str] = None,
        remote_interval: int = 1,
        remote_keep: int = 0,
        remote_retention_waits: bool = True,
        remote_failure_is_fatal: bool = False,
        remote_close_timeout: float = 300.0,
    ) -> None:
        """Opens the store in `path`, or makes it.

        `save_every`: `after_step` saves steps that are its multiples. The rules `keep_...` are those of
        Store.forget, applied after each save. Without one all steps stay. `when_busy` "skip" leaves a
        step out when the save before is under way. `num_threads` 0 is half of the cores.
        `check_staging`: the share of chunks that are digested twice, to find tensors that change too early
        where torch does not count the changes. Above 0, tensors on GPUs are copied before `after_step`
        returns, and so may change at once. `stop_signals`, such as signal.SIGTERM: at the next
        `after_step` the training is saved and told to stop. Only for the main thread. `key` is that of a
        sealed store, as for varve.open.

        `remote`: the URL of an object store, to which saves are sent in the background. Each
        `remote_interval`-th save must get there, and the last one. The newest `remote_keep` snapshots stay
        there, and 0 is all. A folder without a store becomes the newest snapshot first. The rules `keep_...`
        spare steps that have yet to get there (`remote_retention_waits`). A push that fails is repeated, and
        logged as a warning of the logger "varve". It ends the training only with `remote_failure_is_fatal`.
        `close` waits `remote_close_timeout` seconds for the last push. The C++ header
        varve/async_checkpointer.h explains the others.
        """
        if operator.index(save_every) < 1:
            raise InvalidArgumentError(f"save_every is {save_every}, expected 1 or more")
        self._handle = _core.open_checkpointer(
            os.fspath(path),
            run,
            on_existing,
            when_busy,
            compression,
            staging_budget_bytes,
            pipeline_budget_bytes,
            num_threads,
            retries,
            check_staging,
            _policy(keep_last, keep_every, keep_best, keep_within, keep_tags),
            torch.cuda.is_available(),
            None
            if remote is None
            else _core.RemoteOptions.make(
                remote,
                remote_interval,
                remote_keep,
                remote_retention_waits,
                remote_failure_is_fatal,
                remote_close_timeout,
            ),
            _log_push,
            key,
        )
        self._remote = remote
        self._gpus = _gpu.Gpus(self._handle) if torch.cuda.is_available() else None
        # Whether tensors on GPUs may be lent to a save (_may_lend).
        self._is_checked = check_staging > 0
        self._graphs_may_step = False
        self._was_called = False  # before_optimizer_step, since the last after_step
        self._closed = False
        self._run = run
        self._save_every = save_every
        self._capture: Optional[Capture] = None
        self._hooks: list[Any] = []
        self._steps: Optional[OptimizerSteps] = None
        self._lent: Optional[_Lent] = None  # by a save that is not awaited
        self._lent_step = 0
        self._lent_on_gpus = False
        self._signal: Optional[int] = None
        self._old_handlers: dict[int, Any] = {}
        _OPEN.add(self)
        try:
            self._catch(stop_signals)
        except BaseException:
            self.close()
            raise

    @property
    def store(self) -> _store.Store:
        """The store, for queries, tags and metrics. It is closed with the checkpointer."""
        return _store.Store(self._handle.store, "a")

    @property
    def last_save(self) -> Optional[_core.SaveStats]:
        """What the last save that ended did, and what it cost. None: there was none."""
        return self._handle.last_stats()

    @property
    def last_push(self) -> Optional[_core.PushStats]:
        """What the last push to `remote` did, and up to which step. None: there was none."""
        return self._handle.last_push()

    def restore(
        self,
        *,
        model: Any,
        optimizer: Optional[Any] = None,
        scheduler: Optional[Any] = None,
        scaler: Optional[Any] = None,
        loader: Optional[Any] = None,
        extra: Mapping[str, Any] = {},  # noqa: B006  (only read)
        step: Union[int, str, None] = "latest",
        partial: bool = False,
    ) -> Optional[int]:
        """Names the parts of the training, and loads their state. Returns the step, or None: no step yet.

        Call it once, before the first step, also for a new training. `loader` and each object of `extra`
        have state_dict and load_state_dict. The generators of Python, NumPy and torch are restored, too.
        The optimizer gets a hook that calls `before_optimizer_step`. `step` is an expression such as
        "best:loss", and None loads nothing. A step that only `remote` has is copied from there. After a load
        of an earlier step the next save moves the later steps to a new run. `partial`: state of parts that
        are not given stays unused. InvalidArgumentError lists all that does not fit, and nothing was changed
        then.
        """
        self._settle()
        self.wait()
        training = _training.Training(model, optimizer, scheduler, scaler, loader, dict(extra))
        found = None if step is None else self._find(step)
        loaded = None if found is None else self._load(training, found, partial)
        self._capture = Capture(training)
        self._detach()
        self._graphs_may_step = self._graphs_may_step or _gpu.has_graphs()
        if self._gpus is not None:
            self._gpus.use(value for _, value, _ in _training.model_tensors(model))
        if optimizer is not None and hasattr(optimizer, "register_step_pre_hook"):
            self.attach(optimizer)
            self._steps = OptimizerSteps(model, optimizer)
        return loaded

    def attach(self, optimizer: Any) -> None:
        """Adds a hook to another optimizer, which calls `before_optimizer_step` before each step."""
        self._require_open()
        self._hooks.append(
            optimizer.register_step_pre_hook(lambda *_: self.before_optimizer_step())
        )

    def before_optimizer_step(self) -> None:
        """Returns when the tensors may change. At once when no save reads them.

        Call it before each step of an optimizer that is not of torch.optim, and before each replay of a
        CUDA graph that holds an optimizer's step. FailedPreconditionError: a tensor has changed since the
        save started, which is not committed then.
        """
        if _gpu.is_capturing():
            self._graphs_may_step = True
        else:
            self._was_called = True
        self._await()

    def _await(self) -> None:
        if self._closed or self._lent is None:
            return
        changed = self._lent.changed()
        step = self._lent_step
        if changed:
            self._lent = None
            try:
                self._handle.require_awaited()
            except FailedPreconditionError:
                pass  # that is what it is called for
            raise FailedPreconditionError(
                f"step {step} is not saved: {_training.shown(set(changed))} changed between after_step "
                "and before_optimizer_step. Only the optimizer's step may change parameters and the "
                "optimizer's state, and before_optimizer_step, or attach, comes before it"
            )
        try:
            self._handle.await_staged()
        except Error:
            self._lent = None
            raise
        self._lent = None  # not after an interrupt: then the save is still to be awaited

    def after_step(
        self,
        step: int,
        *,
        metrics: Mapping[str, float] = {},  # noqa: B006  (only read)
        tags: Union[str, Iterable[str]] = (),
        save: Optional[bool] = None,
    ) -> bool:
        """Saves the training when this is due, in the background. True: stop, a signal came.

        Call it last in the loop's body, after the scheduler's and scaler's update. `save` True or False
        decides instead of `save_every`. On a stop the step is durable. The error of a save that failed
        comes from the next call that saves or waits.
        """
        self._require_open()
        if self._capture is None:
            raise FailedPreconditionError(
                "call restore() first, which names the parts of the training"
            )
        self._settle()
        stops = self._signal is not None
        due = step % self._save_every == 0 if save is None else save
        if due or stops:
            self._begin(operator.index(step), metrics, tags)
        if stops:
            self.wait()
        return stops

    def wait(self) -> None:
        """Returns when the last save is durable."""
        self._require_open()
        self._await()
        self._handle.wait()

    def close(self) -> None:
        """Waits for the last save, and closes the store. Raises the error of the first save that failed."""
        if self._closed:
            return
        error: Optional[Error] = None
        try:
            self._await()
        except Error as found:
            error = found  # which the store's error repeats with less detail
        self._closed = True
        _OPEN.discard(self)
        self._detach()
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        try:
            self._handle.close()
        except Error as found:
            error = error or found
        if error is not None:
            raise error

    def __del__(self) -> None:
        if getattr(self, "_closed", True):
            return
        if _core.is_in_callback():
            # The garbage was collected on the thread that pushes, for which close would wait.
            _KEPT.append(self)
        else:
            self.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise FailedPreconditionError("the checkpointer is closed")

    def _settle(self) -> None:
        """Ends the reading of a save. A missing call of the trainer is an error, unless a hook makes it."""
        if self._lent is None:
            return
        if self._hooks and not (self._graphs_may_step and self._lent_on_gpus):
            self._await()
            return
        step, self._lent = self._lent_step, None
        try:
            self._handle.require_awaited()
        except FailedPreconditionError:
            raise FailedPreconditionError(
                f"step {step} is not saved: before_optimizer_step was not called after it. Call it "
                "before each step of the optimizer, or attach the optimizer"
            ) from None

    def _begin(
        self, step: int, metrics: Mapping[str, float], tags: Union[str, Iterable[str]]
    ) -> None:
        assert self._capture is not None
        state = self._capture.take()
        progress = _core.TrainerProgress()
        progress.global_step = step
        if "loss" in metrics:
            progress.last_loss = float(metrics["loss"])
        progress.rng = self._capture.rng()
        optimizer_step = self._steps.take() if self._steps is not None else None

        def begin(placed: State) -> Optional[bool]:
            return self._handle.begin_save(
                step,
                placed.names,
                placed.roles,
                placed.values,
                placed.num_lent,
                [(_training.ITEM, placed.text)],
                progress,
                {name: float(value) for name, value in metrics.items()},
                [tags] if isinstance(tags, str) else list(tags),
                optimizer_step,
            )

        may_lend = self._may_lend()
        placed = state if self._gpus is None else self._gpus.place(state, may_lend)
        self._was_called = False
        is_saving = begin(placed)
        if is_saving is None:  # the C++ module does not know all of them
            memories = self._memories(placed.names, placed.values, placed.num_lent)
            is_saving = begin(placed._replace(values=memories))
        if is_saving:
            lent = state.values[: state.num_lent]
            self._lent = _Lent(state.names[: state.num_lent], lent, _versions(lent))
            self._lent_step = step
            self._lent_on_gpus = may_lend and any(_gpu.is_on_gpu(value) for value in lent)

    def _may_lend(self) -> bool:
        """Whether a save may read tensors on GPUs while the next step computes.

        A replay of a CUDA graph calls no hook, and torch does not count what it changes. So once a graph
        may hold the optimizer's step, the training must have called before_optimizer_step in this round.
        Changes that check_staging looks for are not looked for on a GPU, so copies are made then.
        """
        return not self._is_checked and (self._was_called or not self._graphs_may_step)

    def _find(self, step: Union[int, str]) -> Optional[str]:
        """The step to load, as an expression."""
        if step != "latest":
            return str(step)
        runs = {run.name: run.num_steps for run in self.store.runs()}
        return "latest" if runs.get(self._run, 0) else None

    def _load(self, training: _training.Training, step: str, partial: bool) -> int:
        expression = step if self._run == "main" or "@" in step else f"{self._run}@{step}"
        try:
            checkpoint = self.store[expression]
        except NotFoundError:
            if self._remote is None or not self._fetch(expression):
                raise
            checkpoint = self.store[expression]
        if _training.ITEM not in checkpoint.list_bytes():
            raise InvalidArgumentError(
                f"{checkpoint} was not saved by a Checkpointer: it has no item {_training.ITEM}. "
                "Load its tensors with store[...].load or varve.torch.load"
            )
        tree = _trees.loads(checkpoint.read_bytes(_training.ITEM), f"item {_training.ITEM}")
        faults = _training.find_faults(training, tree, partial)
        held: set[str] = set(checkpoint.keys())
        of_model = {name: tensor for name, tensor, _ in _training.model_tensors(training.model)}
        lost = {name for name in held - set(of_model) if name.startswith("model.")}
        lost -= {target for target in _trees.names_in(tree.get("model", {}))}
        if lost:
            faults.append(f"the model lacks {_training.shown(lost)}")
        if set(of_model) - held:
            faults.append(f"the checkpoint lacks {_training.shown(set(of_model) - held)}")
        if faults:
            lines = "\n".join(faults)
            raise InvalidArgumentError(f"the training does not fit to {checkpoint}:\n{lines}")
        tree = _training.wanted(training, tree)
        decoder = _state_dict.decoder_of(checkpoint)
        targets = [(name, tensor.detach()) for name, tensor in of_model.items()]
        allocated = decoder.allocate(
            list(tree.values()), _training.devices_of_state(training, tree)
        )
        targets += [(target.name, target.value) for target in allocated]
        if self._gpus is not None:
            self._gpus.use(value for _, value in targets)
        filled = [(name, value, self._memory_for(value)) for name, value in targets]
        names = [name for name, _, _ in filled]
        memories = [memory for _, _, memory in filled]
        roles = ["other"] * len(names)
        loaded = self._handle.restore(step, names, roles, memories)
        if loaded is None:
            memories = self._memories(names, memories, len(names))
            loaded = self._handle.restore(step, names, roles, memories)
        assert loaded is not None
        with torch.no_grad():
            for _, value, memory in filled:
                if memory is not value:
                    value.copy_(memory)
        _training.apply(training, tree, decoder)
        progress = checkpoint._reader.read_progress()
        if progress is not None:
            _training.apply_rng(progress)
        return loaded

    def _fetch(self, expression: str) -> bool:
        """Copies a step from the newest snapshot that has it. False: none has it."""
        assert self._remote is not None
        for info in reversed(_remote.snapshots(self._remote)):
            try:
                there = _store.open(self._remote, snapshot=info.number)
            except NotFoundError:
                continue  # another host has removed it meanwhile
            with there:
                if expression in there:
                    there.copy_to(self.store, [expression])
                    return True
        return False

    def _memory_for(self, value: Any) -> Any:
        """What a load fills: the tensor or array itself, or memory of the CPU from which it is filled."""
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            return value
        if self._gpus is not None and self._gpus.takes(value):
            return value
        return torch.empty(value.shape, dtype=value.dtype)

    def _memories(self, names: list[str], values: list[Any], num_lent: int) -> list[Any]:
        """What stands for tensors that the C++ module does not know: what it takes, owner and device."""
        found: list[Any] = []
        for i, (name, value) in enumerate(zip(names, values, strict=True)):
            if self._gpus is not None and _gpu.is_on_gpu(value) and self._gpus.takes(value):
                dtype = _arrays.kind_of(value)[0]
                address, owner = value.data_ptr(), value.untyped_storage()
                found.append((dtype.name, value.shape, (), address, owner, value.get_device()))
                continue
            try:
                if i >= num_lent:
                    value = (
                        value.copy() if isinstance(value, np.ndarray) else value.detach().clone()
                    )
                dtype, shape, strides, address, owner = _arrays.memory_of(value)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"tensor {name}: {error}") from None
            found.append((dtype.name, shape, strides, address, owner, _CPU))
        return found

    def _detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._steps is not None:
            self._steps.close()
        self._steps = None

    def _catch(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if threading.current_thread() is not threading.main_thread():
                raise InvalidArgumentError("stop_signals are only for the main thread")
            self._old_handlers[number] = signal.signal(number, self._note_signal)

    def _note_signal(self, number: int, _frame: Optional[FrameType]) -> None:
        self._signal = number


_OPEN: weakref.WeakSet[Checkpointer] = weakref.WeakSet()
_KEPT: list[Checkpointer] = []  # nobody has them, and they are closed at the end


def _close(checkpointer: Checkpointer) -> None:
    """Closes a checkpointer that nobody closed. An error is printed."""
    try:
        checkpointer.close()
    except ForkedError:
        pass  # it is the parent's
    except Exception as error:
        print(f"varve: unreported error of a checkpointer: {error}", file=sys.stderr)


@atexit.register
def _close_all() -> None:
    """An interpreter that ends can run neither hooks nor log handlers, so this comes before."""
    for checkpointer in [*_OPEN, *_KEPT]:
        _close(checkpointer)
    _KEPT.clear()


def _log_push(stats: _core.PushStats) -> None:
    failed = stats.error is not None or stats.warning != ""
    _LOG.log(logging.WARNING if failed else logging.INFO, "%s", stats)


def _policy(
    keep_last: int,
    keep_every: int,
    keep_best: Union[str, Iterable[str]],
    keep_within: Union[datetime.timedelta, int],
    keep_tags: Union[str, Iterable[str]],
) -> Optional[_core.RetentionPolicy]:
    if isinstance(keep_within, datetime.timedelta):
        keep_within = int(keep_within.total_seconds())
    best = [_store._parse_best(text) for text in _store._strings(keep_best)]
    tags = _store._strings(keep_tags)
    if not (keep_last or keep_every or best or keep_within or tags):
        return None
    return _core.RetentionPolicy.make(keep_last, keep_every, best, int(keep_within), tags)


class _Lent(NamedTuple):
    """Tensors that a save reads, and how often torch had changed the memory of each before."""

    names: list[str]
    tensors: list[Any]
    versions: list[int]

    def changed(self) -> list[str]:
        versions = _versions(self.tensors)
        if versions == self.versions:
            return []
        pairs = zip(self.names, versions, self.versions, strict=True)
        return [name for name, now, before in pairs if now != before]


def _versions(tensors: list[Any]) -> list[int]:
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [_version(tensor) for tensor in tensors]


def _version(tensor: Any) -> int:
    """-1 for a tensor that does not count its changes."""
    try:
        return int(tensor._version)
    except RuntimeError:
        return -1
