# SPDX-License-Identifier: Apache-2.0
"""varve for Lightning.

trainer = Trainer(plugins=[varve.lightning.VarveCheckpointIO("ckpt")])
trainer.fit(model, ckpt_path="last")         # or "varve://ckpt@latest"
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Optional

import torch

from . import _store
from ._errors import CorruptionError, InvalidArgumentError, NotFoundError
from .torch import load, save

try:
    from lightning.fabric.plugins import CheckpointIO
except ImportError:
    from lightning_fabric.plugins import CheckpointIO

_SCHEME = "varve://"


class VarveCheckpointIO(CheckpointIO):
    """Keeps the checkpoints of Lightning's Trainer in a store.

    The file that Lightning names, such as epoch=3-step=400.ckpt, is a line of JSON that says where in the
    store the checkpoint is. So ModelCheckpoint and ckpt_path work as ever, and what did not change between
    two checkpoints is stored once. load_from_checkpoint of a LightningModule reads files itself: use
    model.load_state_dict(plugin.load_checkpoint(path)["state_dict"]). The number of a step is global_step.
    A second checkpoint of the same step, and one after a training went back, is in another run, "main.2".
    `options`, such as compression, are those of varve.open. Values are those of varve.torch.save. Nothing is
    pickled. With many ranks rank 0 saves, as Lightning has it. A strategy that writes shards itself, such as
    FSDP with sharded state dicts, does not use this plug-in.
    """

    def __init__(self, path: _store.Path, *, run: str = "main", **options: Any) -> None:
        self._path = os.path.abspath(os.fspath(path))
        self._run = run
        self._options = options

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: _store.Path, storage_options: Optional[Any] = None
    ) -> None:
        """Saves a checkpoint, durably, and then writes the file that names it."""
        if storage_options is not None:
            raise InvalidArgumentError("VarveCheckpointIO takes no storage_options")
        step = int(checkpoint.get("global_step", 0))
        target = pathlib.Path(os.fspath(path))
        before = self._replaced(target)
        with _store.open(self._path, "a", **self._options) as store:
            run = self._free_run(store, step)
            save(store, step, _plain(checkpoint), run=run, metrics=_metrics(checkpoint))
            target.parent.mkdir(parents=True, exist_ok=True)
            place = {"varve": os.path.relpath(self._path, target.parent), "run": run, "step": step}
            part = target.with_name(f".{target.name}.part")
            part.write_text(json.dumps(place) + "\n")
            os.replace(part, target)
            if before is not None and before in store:
                store.drop(before)

    def load_checkpoint(
        self,
        path: _store.Path,
        map_location: Optional[Any] = None,
        weights_only: Optional[bool] = None,
    ) -> dict[str, Any]:
        """The checkpoint of a file, or of "varve://PATH@STEP", on the CPU."""
        store_path, step = self._place(path)
        with _store.open(store_path) as store:
            loaded: dict[str, Any] = load(store, step)
        return loaded

    def remove_checkpoint(self, path: _store.Path) -> None:
        """Drops the step from the store, and removes the file."""
        if not os.path.lexists(path):
            return
        if not os.path.exists(path):  # a link to a checkpoint that is gone
            os.unlink(path)
            return
        store_path, step = self._place(path)
        os.unlink(path)
        with _store.open(store_path, "a", **self._options) as store:
            if step in store:
                store.drop(step)

    def _replaced(self, target: pathlib.Path) -> Optional[str]:
        """The step that a file names which is about to be replaced, as last.ckpt is."""
        if target.is_symlink() or not target.exists():
            return None
        try:
            store_path, step = self._place(target)
        except CorruptionError:
            return None  # of another plug-in
        return step if os.path.realpath(store_path) == os.path.realpath(self._path) else None

    def _free_run(self, store: _store.Store, step: int) -> str:
        """The first run in which the step can be the next one."""
        runs = {run.name: run.num_steps for run in store.runs()}
        name, number = self._run, 1
        while runs.get(name, 0) and store[f"{name}@latest"].step >= step:
            number += 1
            name = f"{self._run}.{number}"
        return name

    def _place(self, path: _store.Path) -> tuple[str, str]:
        """Store and step that a path names."""
        text = os.fspath(path)
        if text.startswith(_SCHEME):
            store_path, at, step = text.removeprefix(_SCHEME).rpartition("@")
            return (store_path, step) if at else (step, "latest")
        try:
            with open(text, "rb") as file:
                place = json.loads(file.read(65536))
            relative, run, step_number = place["varve"], place["run"], int(place["step"])
        except FileNotFoundError:
            raise NotFoundError(f"there is no checkpoint {text}") from None
        except (ValueError, KeyError, TypeError):
            raise CorruptionError(
                f"{text} is not a file of VarveCheckpointIO: expected one line of JSON with varve, run and "
                "step. Load it with Lightning's own plug-in"
            ) from None
        folder = os.path.dirname(os.path.realpath(text))
        return os.path.join(folder, relative), f"{run}@{step_number}"


def _metrics(checkpoint: Mapping[str, Any]) -> dict[str, float]:
    """The value that each ModelCheckpoint watches."""
    found = {}
    for state in checkpoint.get("callbacks", {}).values():
        if isinstance(state, Mapping) and state.get("monitor") and "current_score" in state:
            score = state["current_score"]
            if isinstance(score, (int, float, torch.Tensor)) and math.isfinite(float(score)):
                found[str(state["monitor"])] = float(score)
    return found


def _plain(value: Any) -> Any:
    """The same with dicts for other mappings, as those of Lightning's hyper-parameters."""
    if isinstance(value, Mapping) and type(value).__module__ != "collections":
        return {key: _plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(each) for each in value)
    return value
