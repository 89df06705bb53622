# SPDX-License-Identifier: Apache-2.0
"""safe_open: the interface of the safetensors package, for its files and for checkpoints of a store."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Optional, Protocol, Union

from . import _arrays, _dtypes, _store
from ._checkpoint import Checkpoint
from ._dtypes import Array, DType
from ._errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from ._safetensors_file import File, Spec, sort_specs

_SCHEME = "varve://"
_METADATA_PREFIX = "safetensors."  # of the state's values that `varve import` makes of metadata


class _Source(Protocol):
    """What has named tensors. Each method raises NotFoundError for a name that it lacks."""

    def specs(self) -> list[Spec]: ...  # in the order of a file
    def find(self, name: str) -> tuple[DType, tuple[int, ...]]: ...
    def read(self, name: str, framework: str) -> Any: ...
    def read_slice(self, name: str, index: Any) -> Array: ...
    def metadata(self) -> Optional[dict[str, str]]: ...
    def close(self) -> None: ...


class _FileSource:
    def __init__(self, path: str) -> None:
        self._path = path
        self._file = File(path)

    def specs(self) -> list[Spec]:
        return [Spec(name, entry.dtype, entry.shape) for name, entry in self._file.entries.items()]

    def find(self, name: str) -> tuple[DType, tuple[int, ...]]:
        entry = self._file.entries.get(name)
        if entry is None:
            raise NotFoundError(f"{self._path} has no tensor {name}")
        return entry.dtype, entry.shape

    def read(self, name: str, framework: str) -> Any:
        dtype, shape = self.find(name)
        return _arrays.from_bytes(self._file.read(name).copy(), dtype, shape, framework)

    def read_slice(self, name: str, index: Any) -> Array:
        dtype, shape = self.find(name)
        part: Array = _dtypes.unpack(self._file.read(name), dtype, shape)[index]
        return part.copy()

    def metadata(self) -> Optional[dict[str, str]]:
        return self._file.metadata

    def close(self) -> None:
        pass  # arrays may still lie in the map, which goes with the last of them


class _StepSource:
    def __init__(self, checkpoint: Checkpoint, store: Optional[_store.Store]) -> None:
        self._checkpoint = checkpoint
        self._store = store  # to be closed with it

    def specs(self) -> list[Spec]:
        return sort_specs(
            Spec(tensor.name, _dtypes.BY_NAME[tensor.dtype_name], tensor.shape)
            for tensor in self._checkpoint.values()
        )

    def find(self, name: str) -> tuple[DType, tuple[int, ...]]:
        tensor = self._checkpoint[name]
        return _dtypes.BY_NAME[tensor.dtype_name], tensor.shape

    def read(self, name: str, framework: str) -> Any:
        return self._checkpoint.read(name, framework=framework)

    def read_slice(self, name: str, index: Any) -> Array:
        return self._checkpoint[name][index]  # type: ignore[no-any-return]

    def metadata(self) -> Optional[dict[str, str]]:
        state = self._checkpoint.state or {}
        found = {
            key[len(_METADATA_PREFIX) :]: value
            for key, value in state.items()
            if key.startswith(_METADATA_PREFIX) and isinstance(value, str)
        }
        return found or None

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def open_source(target: Union[str, os.PathLike[str], Checkpoint]) -> _Source:
    """Opens what `safe_open` and `load_file` take."""
    if isinstance(target, Checkpoint):
        return _StepSource(target, None)
    path = os.fspath(target)
    step = "latest"
    if path.startswith(_SCHEME):
        folder, name = os.path.split(path[len(_SCHEME) :])
        name, at, expression = name.partition("@")
        path, step = os.path.join(folder, name), expression if at else step
    elif not os.path.isdir(path):
        return _FileSource(path)
    store = _store.open(path, "r")
    try:
        return _StepSource(store[step], store)
    except BaseException:
        store.close()
        raise


def check_backend(backend: str) -> None:
    """Refuses what the safetensors package has no backend for."""
    if backend not in ("mmap", "pread"):
        raise InvalidArgumentError(f'backend "{backend}" is not mmap or pread')


class _Slice:
    """A tensor that reads what it is indexed by."""

    def __init__(self, opened: safe_open, name: str) -> None:
        self._opened = opened
        self._name = name

    def get_shape(self) -> list[int]:
        return list(self._opened._source().find(self._name)[1])

    def get_dtype(self) -> str:
        return self._opened._source().find(self._name)[0].name

    def __getitem__(self, index: Any) -> Any:
        return self._opened._give(self._opened._source().read_slice(self._name, index))


class safe_open:  # noqa: N801  (the safetensors package's name)
    """Opens a checkpoint, or a file of safetensors, as `safetensors.safe_open` does.

    `filename` is a Checkpoint, a file of safetensors, the folder of a store (its latest step of the run
    main), or "varve://PATH@STEP". `framework` is "pt", "numpy" or "flax". `device` is one of torch. `backend`
    is for code of the safetensors package, and makes no difference. Arrays that it gives are new memory of
    the caller's. NotFoundError: no such store, step or tensor. FileNotFoundError: no such file.
    CorruptionError: the file is no valid one. Thread rule: any number of threads.
    """

    def __init__(
        self,
        filename: Union[str, os.PathLike[str], Checkpoint],
        framework: str = "pt",
        device: Union[str, int] = "cpu",
        *,
        backend: str = "mmap",
    ) -> None:
        check_backend(backend)
        self._framework = _arrays.framework_name(framework)
        if self._framework != "numpy":
            _arrays.import_framework(self._framework)
        self._device = device
        self._opened: Optional[_Source] = open_source(filename)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def keys(self) -> list[str]:
        """The names, ordered."""
        return sorted(spec.name for spec in self._source().specs())

    def offset_keys(self) -> list[str]:
        """The names in the order of the file, or of the file that an export would make."""
        return [spec.name for spec in self._source().specs()]

    def metadata(self) -> Optional[dict[str, str]]:
        """The metadata of the file, or what an import kept of it. None: there is none."""
        return self._source().metadata()

    def get_tensor(self, name: str) -> Any:
        """Reads a whole tensor."""
        tensor = self._source().read(name, self._framework)
        return self._to_device(tensor) if self._framework == "torch" else tensor

    def get_tensors(self) -> dict[str, Any]:
        """Reads every tensor."""
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> _Slice:
        """The tensor of a name, which reads only what it is indexed by."""
        self._source().find(name)
        return _Slice(self, name)

    def _source(self) -> _Source:
        if self._opened is None:
            raise FailedPreconditionError("the file is closed")
        return self._opened

    def _give(self, part: Any) -> Any:
        if self._framework == "numpy":
            return part
        given = _arrays.from_numpy(_arrays.as_numpy(part), self._framework)
        return self._to_device(given) if self._framework == "torch" else given

    def _to_device(self, tensor: Any) -> Any:
        return tensor if self._device == "cpu" else tensor.to(self._device)
