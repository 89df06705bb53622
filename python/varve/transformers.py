# SPDX-License-Identifier: Apache-2.0
"""varve for the Trainer of Hugging Face transformers.

callback = varve.transformers.VarveCallback("ckpt", keep_last=3).attach(trainer)
trainer.train(resume_from_checkpoint="varve://ckpt@latest")      # or True: the latest step, if there is one
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import tempfile
from typing import Any, Optional

import torch
import transformers

from . import _remote, _store
from ._errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from .torch import Checkpointer, _state_dict, _training, _trees

_SCHEME = "varve://"
_PART = "trainer"  # the name of the Trainer's state in a step


class _TrainerState:
    """The Trainer's state as a part of a training."""

    def __init__(self) -> None:
        self.text = ""

    def state_dict(self) -> dict[str, str]:
        return {"json": self.text}

    def load_state_dict(self, state: dict[str, str]) -> None:
        self.text = state["json"]


class VarveCallback(transformers.TrainerCallback):
    """Saves the training of a Trainer with a Checkpointer, when the Trainer would save: in the background.

    `attach` it to the Trainer, whose save_strategy and save_steps decide when. The Trainer writes no
    checkpoint-N folders then. A step of the store has the model, optimizer, scheduler, scaler, generators
    and the Trainer's state. A resumed training has the losses of one that was not stopped. `run` and
    `options` are those of Checkpointer. With `remote` a host whose folder has no store goes on from there.
    The number of a step is global_step, and its metrics are the numbers that the Trainer logged last. For one
    process. load_best_model_at_end and save_strategy "best" need the Trainer's own files, and are refused.
    """

    def __init__(self, path: _store.Path, *, run: str = "main", **options: Any) -> None:
        self._path = os.fspath(path)
        self._run = run
        self._options = options
        self._checkpointer: Optional[Checkpointer] = None
        self._trainer_state = _TrainerState()
        self._resume: Optional[str] = None  # the step to go on from
        self._is_due = False
        self._saved_step: Optional[int] = None
        self._trainer: Optional[Any] = None

    def attach(self, trainer: Any) -> VarveCallback:
        """Adds the callback, and teaches trainer.train() what "varve://PATH@STEP" is. Returns itself."""
        _check(trainer.args)
        trainer.add_callback(self)
        self._trainer = trainer
        train = trainer.train

        @functools.wraps(train)
        def train_from(resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
            self._pull()
            step = self._step_of(resume_from_checkpoint)
            try:
                if step is None:
                    given = None if resume_from_checkpoint is True else resume_from_checkpoint
                    return train(given, *args, **kwargs)
                with tempfile.TemporaryDirectory(prefix="varve_resume_") as folder:
                    self._write_folder(trainer, step, pathlib.Path(folder))
                    self._resume = step
                    return train(folder, *args, **kwargs)
            finally:
                self._resume = None
                self._close()

        trainer.train = train_from
        return self

    # Resuming. The Trainer reads a folder of its own kind: its state, from which it knows how many
    # batches to skip, the generators, which it sets after it has skipped, and a model, whose weights are
    # replaced before the first step.

    def _has_store(self) -> bool:
        try:
            _store.open(self._path).close()
        except NotFoundError:
            return False
        return True

    def _pull(self) -> None:
        """On a new host, whose folder is missing or empty, the newest snapshot of `remote` comes first."""
        url = self._options.get("remote")
        if url is not None and not self._has_store() and _remote.snapshots(url):
            _remote.pull(url, self._path)

    def _step_of(self, resume: Any) -> Optional[str]:
        if resume is True:
            if not self._has_store():
                return None
            with _store.open(self._path) as store:
                return "latest" if self._run in [run.name for run in store.runs()] else None
        if not isinstance(resume, str) or not resume.startswith(_SCHEME):
            return None
        path, at, step = resume.removeprefix(_SCHEME).rpartition("@")
        path, step = (path, step) if at else (step, "latest")
        if os.path.realpath(path) != os.path.realpath(self._path):
            raise InvalidArgumentError(
                f"{resume} is not in {self._path}, where the callback saves: copy the step there, or name "
                "its folder in VarveCallback(...)"
            )
        return step

    def _write_folder(self, trainer: Any, step: str, folder: pathlib.Path) -> None:
        with _store.open(self._path) as store:
            expression = step if self._run == "main" or "@" in step else f"{self._run}@{step}"
            checkpoint = store[expression]
            tree = _trees.loads(checkpoint.read_bytes(_training.ITEM), f"item {_training.ITEM}")
            if f"extra.{_PART}" not in tree:
                raise InvalidArgumentError(f"{checkpoint} was not saved by a VarveCallback")
            decoder = _state_dict.decoder_of(checkpoint)
            text = decoder.build(tree[f"extra.{_PART}"])["json"]
            progress = checkpoint._reader.read_progress()
        (folder / "trainer_state.json").write_text(text)
        model = trainer.model
        if hasattr(model, "save_pretrained"):
            model.save_pretrained(folder)
        else:
            torch.save(model.state_dict(), folder / "pytorch_model.bin")
        if progress is not None:
            states = {name: _training.rng_value(name, state) for _, name, state in progress.rng}
            states["cpu"] = states.pop("torch")
            states["cuda"] = states.pop("cuda:0", None)
            torch.save(states, folder / "rng_state.pth")

    # What the Trainer calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        _check(args)
        self._close()
        optimizer = objects["optimizer"]
        self._checkpointer = Checkpointer(self._path, run=self._run, **self._options)
        if self._resume is None:
            self._require_new_run()
        scaler = getattr(optimizer, "scaler", None)
        self._checkpointer.restore(
            model=objects["model"],
            optimizer=_unwrapped(optimizer, "optimizer"),
            scheduler=_unwrapped(objects["lr_scheduler"], "scheduler"),
            extra={_PART: self._trainer_state},
            step=self._resume,
            **({} if scaler is None else {"scaler": scaler}),
        )
        self._is_due, self._saved_step = False, None

    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._save_if_due(state)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._save_if_due(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> Any:
        return self._take_over(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **objects: Any) -> Any:
        self._save_if_due(state)  # before the next epoch shuffles
        return self._take_over(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._save_if_due(state)
        self._close()

    def _take_over(self, control: Any) -> Any:
        """A save is due. It happens when the Trainer has logged and evaluated, at the next event."""
        if control.should_save:
            control.should_save = False
            self._is_due = True
        return control

    def _save_if_due(self, state: Any) -> None:
        if not self._is_due:
            return
        self._is_due = False
        if self._checkpointer is None or self._trainer is None:
            raise FailedPreconditionError("call attach(trainer) instead of trainer.add_callback()")
        if state.global_step == self._saved_step:
            return  # by another rule of the Trainer
        self._saved_step = state.global_step
        _note_callbacks(self._trainer, state)
        self._trainer_state.text = json.dumps(dataclasses.asdict(state), sort_keys=True)
        logged = state.log_history[-1] if state.log_history else {}
        metrics = {
            name: float(value)
            for name, value in logged.items()
            if isinstance(value, (int, float)) and name not in ("step", "epoch")
        }
        self._checkpointer.after_step(state.global_step, metrics=metrics, save=True)

    def _require_new_run(self) -> None:
        assert self._checkpointer is not None
        store = self._checkpointer.store
        if self._run in [run.name for run in store.runs() if run.num_steps]:
            newest = store.steps(self._run)[-1].step
            raise FailedPreconditionError(
                f"run {self._run} in {self._path} has steps up to {newest}, and this training starts anew: "
                f'resume with train(resume_from_checkpoint="{_SCHEME}{self._path}@latest"), or name '
                "another run"
            )

    def _close(self) -> None:
        if self._checkpointer is not None:
            checkpointer, self._checkpointer = self._checkpointer, None
            checkpointer.close()


def _check(args: Any) -> None:
    if args.world_size > 1:
        raise InvalidArgumentError(
            f"VarveCallback saves one process, and there are {args.world_size}: save with DCP and "
            "VarveStorageWriter"
        )
    if args.load_best_model_at_end or str(getattr(args.save_strategy, "value", "")) == "best":
        raise InvalidArgumentError(
            'load_best_model_at_end and save_strategy "best" need files of the Trainer. Use keep_best= of '
            'VarveCallback, and store["best:METRIC"]'
        )


def _note_callbacks(trainer: Any, state: Any) -> None:
    """Writes the state of callbacks that have some into that of the Trainer, as its own save does."""
    for each in [*trainer.callback_handler.callbacks, trainer.control]:
        if isinstance(each, transformers.trainer_callback.ExportableState):
            name = type(each).__name__
            if isinstance(state.stateful_callbacks.get(name), list):
                state.stateful_callbacks[name].append(each.state())
            else:
                state.stateful_callbacks[name] = each.state()


def _unwrapped(wrapper: Any, name: str) -> Any:
    """What accelerate has wrapped."""
    return getattr(wrapper, name, wrapper)
