# SPDX-License-Identifier: Apache-2.0
"""varve for PyTorch: state dicts in and out, and exact resume of a training.

    varve.torch.save(store, 100, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    state = varve.torch.load(store, 100)

`import varve` does not import this module, and so not torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._checkpointer import Checkpointer
from ._state_dict import load, save

if TYPE_CHECKING:
    from ._stager import VarveStager
    from .dcp import VarveStorageReader, VarveStorageWriter

__all__ = [
    "Checkpointer",
    "VarveStager",
    "VarveStorageReader",
    "VarveStorageWriter",
    "load",
    "save",
]

# They import much of torch, so each is imported when it is first used.
_HOMES = {"VarveStager": "_stager", "VarveStorageReader": "dcp", "VarveStorageWriter": "dcp"}


def __getattr__(name: str) -> Any:
    if name == "dcp":
        return importlib.import_module(f"{__name__}.dcp")
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
