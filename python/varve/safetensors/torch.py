# SPDX-License-Identifier: Apache-2.0
"""The functions of safetensors.torch, with their signatures.

Imports torch when it is used.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Optional, Union

from .._checkpoint import Checkpoint
from . import load as _load
from . import load_file as _load_file
from . import save, save_file

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def load(data: bytes) -> dict[str, Any]:
    """Reads all tensors of a file that is in memory."""
    return _load(data, framework="torch")


def load_file(
    filename: Union[str, os.PathLike[str], Checkpoint],
    device: Union[str, int] = "cpu",
    *,
    backend: str = "mmap",
) -> dict[str, Any]:
    """Reads all tensors as torch tensors on `device`."""
    return _load_file(filename, device, framework="torch", backend=backend)


def save_model(
    model: Any,
    filename: Union[str, os.PathLike[str]],
    metadata: Optional[dict[str, str]] = None,
    force_contiguous: bool = True,
) -> None:
    """Writes the state of a module. If several tensors are one, such as tied weights, the first is written.

    The metadata says which name stands for each of the others. `force_contiguous` makes no difference, as
    tensors are written densely in any case.
    """
    state = model.state_dict()
    noted = dict(metadata or {})
    for name, kept in _aliases(state, ()).items():
        noted.setdefault(name, kept)
        del state[name]
    save_file(state, filename, noted or None)


def load_model(
    model: Any,
    filename: Union[str, os.PathLike[str], Checkpoint],
    strict: bool = True,
    device: Union[str, int] = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[list[str], list[str]]:
    """Reads into a module. Gives the names that the file lacks, and those that the module lacks.

    RuntimeError: `strict`, and there are such names.
    """
    given = load_file(filename, device, backend=backend)
    aliases = _aliases(model.state_dict(), given)
    missing, unexpected = model.load_state_dict(given, strict=False)
    lacking = sorted(name for name in missing if aliases.get(name) not in given)
    unknown = sorted(unexpected)
    if strict and (lacking or unknown):
        raise RuntimeError(
            f"the file and the {type(model).__name__} differ: the file lacks {lacking}, the module {unknown}"
        )
    return lacking, unknown


def _aliases(state: Mapping[str, Any], preferred: Collection[str]) -> dict[str, str]:
    """The names of tensors that are one with another, which is kept: a preferred one, or the first."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in state.items():
        if tensor.numel() > 0 and tensor.device.type != "meta":
            place = (tensor.device, tensor.data_ptr(), tensor.dtype)
            groups.setdefault((*place, tuple(tensor.shape), tensor.stride()), []).append(name)
    found: dict[str, str] = {}
    for names in groups.values():
        kept = min(names, key=lambda name: (name not in preferred, name))
        found.update((name, kept) for name in names if name != kept)
    return found
