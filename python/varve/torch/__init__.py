# SPDX-License-Identifier: Apache-2.0
"""varve for PyTorch: state dicts in and out, and exact resume of a training.

    varve.torch.save(store, 100, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    state = varve.torch.load(store, 100)

`import varve` does not import this module, and so not torch.
"""

from __future__ import annotations

from ._checkpointer import Checkpointer
from ._state_dict import load, save

__all__ = ["Checkpointer", "load", "save"]
