# SPDX-License-Identifier: Apache-2.0
"""varve: an embedded store for the checkpoints of trainings.

with varve.open("ckpt", "a") as store:
    with store.save(100, metrics={"loss": 2.1}) as step:
        step["model.wte"] = wte
    wte = store["latest"]["model.wte"][...]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

# Importing varve is quick, as each name is looked up in its module at its first use. Type checkers read
# these lines instead.
if TYPE_CHECKING:
    from . import lightning as lightning
    from . import safetensors
    from . import torch as torch
    from . import transformers as transformers
    from ._checkpoint import Checkpoint
    from ._core import VERSION as __version__
    from ._core import (
        BackupReport,
        CheckpointDiff,
        CheckpointId,
        CheckpointInfo,
        CheckReport,
        DropForecast,
        DropReport,
        PullReport,
        PushReport,
        PushStats,
        ReclaimReport,
        RemoteReclaimReport,
        RetentionDecision,
        RewindReport,
        RunInfo,
        SaveReport,
        SnapshotInfo,
        StoreStats,
        TensorChange,
        TensorDiff,
        ValueDiff,
    )
    from ._errors import (
        AbortedError,
        AlreadyExistsError,
        CorruptionError,
        Error,
        FailedPreconditionError,
        ForkedError,
        InvalidArgumentError,
        IOError,  # noqa: A004
        LockedError,
        NotFoundError,
        UnavailableError,
    )
    from ._remote import pull, push, reclaim_remote, snapshots
    from ._safe_open import safe_open
    from ._step import Step
    from ._store import ForgetReport, RunList, StepList, Store, backup, open  # noqa: A004
    from ._tensor import Tensor

_MODULES = ("lightning", "safetensors", "torch", "transformers")
_NAMES = {
    "_checkpoint": ("Checkpoint",),
    "_core": (
        "BackupReport",
        "CheckpointDiff",
        "CheckpointId",
        "CheckpointInfo",
        "CheckReport",
        "DropForecast",
        "DropReport",
        "PullReport",
        "PushReport",
        "PushStats",
        "ReclaimReport",
        "RemoteReclaimReport",
        "RetentionDecision",
        "RewindReport",
        "RunInfo",
        "SaveReport",
        "SnapshotInfo",
        "StoreStats",
        "TensorChange",
        "TensorDiff",
        "ValueDiff",
    ),
    "_errors": (
        "AbortedError",
        "AlreadyExistsError",
        "CorruptionError",
        "Error",
        "FailedPreconditionError",
        "ForkedError",
        "InvalidArgumentError",
        "IOError",
        "LockedError",
        "NotFoundError",
        "UnavailableError",
    ),
    "_remote": ("pull", "push", "reclaim_remote", "snapshots"),
    "_safe_open": ("safe_open",),
    "_step": ("Step",),
    "_store": ("ForgetReport", "RunList", "StepList", "Store", "backup", "open"),
    "_tensor": ("Tensor",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "BackupReport",
    "CheckReport",
    "Checkpoint",
    "CheckpointDiff",
    "CheckpointId",
    "CheckpointInfo",
    "CorruptionError",
    "DropForecast",
    "DropReport",
    "Error",
    "FailedPreconditionError",
    "ForgetReport",
    "ForkedError",
    "IOError",
    "InvalidArgumentError",
    "LockedError",
    "NotFoundError",
    "PullReport",
    "PushReport",
    "PushStats",
    "ReclaimReport",
    "RemoteReclaimReport",
    "RetentionDecision",
    "RewindReport",
    "RunInfo",
    "RunList",
    "SaveReport",
    "SnapshotInfo",
    "Step",
    "StepList",
    "Store",
    "StoreStats",
    "Tensor",
    "TensorChange",
    "TensorDiff",
    "UnavailableError",
    "ValueDiff",
    "__version__",
    "backup",
    "open",
    "pull",
    "push",
    "reclaim_remote",
    "safe_open",
    "safetensors",
    "snapshots",
]


if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name == "__version__":
            found = importlib.import_module(f"{__name__}._core").VERSION
        elif name in _HOMES:
            found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
