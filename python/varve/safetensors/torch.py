# SPDX-License-Identifier: Apache-2.0
"""`save_file` and `load_file` with the signatures of safetensors.torch. Imports torch when it is used."""

from __future__ import annotations

import os
from typing import Any, Union

from .._checkpoint import Checkpoint
from . import load_file as _load_file
from . import save_file

__all__ = ["load_file", "save_file"]


def load_file(
    filename: Union[str, os.PathLike[str], Checkpoint], device: Union[str, int] = "cpu"
) -> dict[str, Any]:
    """Reads all tensors as torch tensors on `device`."""
    return _load_file(filename, device, framework="torch")
