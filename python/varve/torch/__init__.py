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
    from .dcp import VarveStorageReader, VarveStorageWriter

__all__ = ["Checkpointer", "VarveStorageReader", "VarveStorageWriter", "load", "save"]


def __getattr__(name: str) -> Any:
    if name in ("VarveStorageReader", "VarveStorageWriter", "dcp"):  # they import much of torch
        module = importlib.import_module(f"{__name__}.dcp")
        return module if name == "dcp" else getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
