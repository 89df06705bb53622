# SPDX-License-Identifier: Apache-2.0
"""Files of safetensors, in and out, bit for bit as the safetensors package writes them.

`varve.safetensors.torch` and `varve.safetensors.numpy` have the signatures of the modules of that name in
the safetensors package.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Mapping
from typing import Any, Optional, Union

from .. import _arrays, _dtypes
from .._checkpoint import Checkpoint
from .._safe_open import check_backend, open_source
from .._safetensors_file import File, Spec, build_header, sort_specs
from .._tensor import Tensor

__all__ = ["load", "load_file", "save", "save_file"]


def save(
    tensors: Union[Mapping[str, Any], Checkpoint], metadata: Optional[dict[str, str]] = None
) -> bytes:
    """What save_file would write."""
    given = dict(tensors.items())
    specs = sort_specs(_spec_of(name, value) for name, value in given.items())
    parts = [bytes(_bytes_of(given[spec.name]).data) for spec in specs]
    return b"".join([build_header(specs, metadata), *parts])


def load(data: bytes, *, framework: str = "numpy") -> dict[str, Any]:
    """Reads all tensors of a file that is in memory. CorruptionError: it is no valid one."""
    framework = _arrays.framework_name(framework)
    file = File("the file in memory", bytes(data))
    return {
        name: _arrays.from_bytes(file.read(name).copy(), entry.dtype, entry.shape, framework)
        for name, entry in file.entries.items()
    }


def save_file(
    tensors: Union[Mapping[str, Any], Checkpoint],
    filename: Union[str, os.PathLike[str]],
    metadata: Optional[dict[str, str]] = None,
) -> None:
    """Writes arrays, or a checkpoint, into a file of safetensors.

    `tensors` holds NumPy arrays, torch tensors or lazy tensors, which are read one at a time. The file
    takes its name when it is complete.
    """
    given = dict(tensors.items())
    specs = sort_specs(_spec_of(name, value) for name, value in given.items())
    path = os.fspath(filename)
    unfinished = f"{path}.{os.getpid()}.tmp"
    try:
        with builtins.open(unfinished, "wb") as file:
            file.write(build_header(specs, metadata))
            for spec in specs:
                file.write(_bytes_of(given[spec.name]).data)
        os.replace(unfinished, path)
    except BaseException:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise


def load_file(
    filename: Union[str, os.PathLike[str], Checkpoint],
    device: Union[str, int] = "cpu",
    *,
    framework: str = "numpy",
    backend: str = "mmap",
) -> dict[str, Any]:
    """Reads all tensors of a file, or of whatever `varve.safe_open` opens, which explains `backend`."""
    check_backend(backend)
    framework = _arrays.framework_name(framework)
    source = open_source(filename)
    try:
        found = {spec.name: source.read(spec.name, framework) for spec in source.specs()}
    finally:
        source.close()
    if framework == "torch" and device != "cpu":
        found = {name: tensor.to(device) for name, tensor in found.items()}
    return found


def _spec_of(name: str, value: Any) -> Spec:
    if isinstance(value, Tensor):
        return Spec(name, _dtypes.BY_NAME[value.dtype_name], value.shape)
    memory = _arrays.memory_of(value)
    return Spec(name, memory.dtype, memory.shape)


def _bytes_of(value: Any) -> _dtypes.Bytes:
    if _arrays.is_torch(value):
        torch = _arrays.import_torch()
        flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        stored: _dtypes.Bytes = flat.view(torch.uint8).numpy()
        return stored
    array = _arrays.as_numpy(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return _dtypes.pack(array, _dtypes.of_numpy(array.dtype))
