# SPDX-License-Identifier: Apache-2.0
"""`save`, `load`, `save_file` and `load_file` with the signatures of safetensors.flax.

Imports jax when it is used.
"""

from __future__ import annotations

import os
from typing import Any, Union

from .._checkpoint import Checkpoint
from . import load as _load
from . import load_file as _load_file
from . import save, save_file

__all__ = ["load", "load_file", "save", "save_file"]


def load(data: bytes) -> dict[str, Any]:
    """Reads all tensors of a file that is in memory."""
    return _load(data, framework="jax")


def load_file(
    filename: Union[str, os.PathLike[str], Checkpoint], *, backend: str = "mmap"
) -> dict[str, Any]:
    """Reads all tensors as arrays of JAX."""
    return _load_file(filename, framework="jax", backend=backend)
