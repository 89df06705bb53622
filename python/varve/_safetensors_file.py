# SPDX-License-Identifier: Apache-2.0
"""The safetensors format: a length, a header of JSON, and the bytes of tensors without a gap."""

from __future__ import annotations

import builtins
import json
import mmap
import os
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from . import _dtypes
from ._dtypes import Bytes, DType
from ._errors import CorruptionError, InvalidArgumentError

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # what the safetensors package allows
_METADATA = "__metadata__"
# Wide types first. Ties as the safetensors package breaks them.
_ORDER = (
    "U64 I64 F64 C64 F32 U32 I32 BF16 F16 U16 I16 F8_E8M0 F8_E4M3 F8_E5M2 I8 U8 F6_E3M2 F6_E2M3 F4 BOOL"
).split()
_RANK = {name: rank for rank, name in enumerate(_ORDER)}


class Entry(NamedTuple):
    """A tensor of a file. Offsets count from the end of the header."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


class Spec(NamedTuple):
    """A tensor to write."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return self.dtype.num_bytes(self.shape)


def sort_specs(specs: Iterable[Spec]) -> list[Spec]:
    """In the order of a file."""
    return sorted(specs, key=lambda spec: (_RANK[spec.dtype.name], spec.name.encode()))


def build_header(specs: list[Spec], metadata: Optional[dict[str, str]]) -> bytes:
    """The first bytes of a file of these tensors, as the safetensors package writes them."""
    header: dict[str, Any] = {}
    if metadata is not None:
        for key, value in metadata.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise InvalidArgumentError(f"metadata holds strings only, not {key!r}: {value!r}")
        header[_METADATA] = metadata
    offset = 0
    for spec in specs:
        if spec.name == _METADATA:
            raise InvalidArgumentError(f'the format cannot hold a tensor named "{_METADATA}"')
        end = offset + spec.num_bytes
        header[spec.name] = {
            "dtype": spec.dtype.name,
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER_BYTES:
        raise InvalidArgumentError(
            f"the header would be {len(text)} bytes, and the format allows {_MAX_HEADER_BYTES}"
        )
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _map_file(path: str) -> Union[mmap.mmap, bytes]:
    with builtins.open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size > 0 else b""


class File:
    """A file that is open for reading. Nothing in it is trusted: CorruptionError says what is wrong.

    `content` is what the file holds, for one that is in memory. Thread rule: any number of threads.
    """

    def __init__(self, path: str, content: Optional[bytes] = None) -> None:
        self._path = path
        self._map = _map_file(path) if content is None else content
        size = len(self._map)
        if size < _LENGTH_BYTES:
            raise CorruptionError(f"{path}: {size} bytes are too few for a safetensors file")
        length = int.from_bytes(self._map[:_LENGTH_BYTES], "little")
        if length > min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            raise CorruptionError(
                f"{path}: the header has {length} bytes, the file {size - _LENGTH_BYTES}"
            )
        self._data_begin = _LENGTH_BYTES + length
        header = self._parse(self._map[_LENGTH_BYTES : self._data_begin])
        self.metadata = self._take_metadata(header)
        entries = [(name, self._entry(name, value)) for name, value in header.items()]
        self.entries = dict(sorted(entries, key=lambda item: (item[1].begin, item[1].end, item[0])))
        self._check_coverage(size - self._data_begin)

    def read(self, name: str) -> Bytes:
        """The bytes of a tensor, in the mapped file: they cannot be written."""
        entry = self.entries[name]
        return np.frombuffer(
            self._map,
            np.uint8,
            count=entry.end - entry.begin,
            offset=self._data_begin + entry.begin,
        )

    def _parse(self, text: bytes) -> dict[str, Any]:
        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) != len(pairs):
                raise CorruptionError(f"{self._path}: the header names a key twice")
            return found

        try:
            header = json.loads(text.decode(), object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:
            if isinstance(error, CorruptionError):
                raise
            raise CorruptionError(f"{self._path}: the header is no JSON: {error}") from error
        if not isinstance(header, dict):
            raise CorruptionError(f"{self._path}: the header is no object")
        return header

    def _take_metadata(self, header: dict[str, Any]) -> Optional[dict[str, str]]:
        if _METADATA not in header:
            return None
        metadata = header.pop(_METADATA)
        if not isinstance(metadata, dict) or not all(
            isinstance(value, str) for value in metadata.values()
        ):
            raise CorruptionError(f"{self._path}: {_METADATA} holds something besides strings")
        return metadata

    def _entry(self, name: str, value: Any) -> Entry:
        where = f"{self._path}: tensor {name}"
        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
            raise CorruptionError(f"{where}: it has not just dtype, shape and data_offsets")
        dtype = _dtypes.BY_NAME.get(value["dtype"]) if isinstance(value["dtype"], str) else None
        if dtype is None:
            raise CorruptionError(f"{where}: no dtype is called {value['dtype']!r}")
        for key in ("shape", "data_offsets"):
            if not isinstance(value[key], list) or any(
                type(n) is not int or n < 0 for n in value[key]
            ):
                raise CorruptionError(f"{where}: {key} is no list of natural numbers")
        shape, offsets = tuple(value["shape"]), value["data_offsets"]
        if len(offsets) != 2 or offsets[1] - offsets[0] != dtype.num_bytes(shape):
            raise CorruptionError(
                f"{where}: {dtype.name} {list(shape)} has {dtype.num_bytes(shape)} bytes, "
                f"its offsets are {offsets}"
            )
        return Entry(dtype, shape, offsets[0], offsets[1])

    def _check_coverage(self, num_bytes: int) -> None:
        at = 0
        for name, entry in self.entries.items():
            if entry.begin != at:
                raise CorruptionError(
                    f"{self._path}: tensor {name} begins at {entry.begin}, expected {at}"
                )
            at = entry.end
        if at != num_bytes:
            raise CorruptionError(f"{self._path}: the tensors end at {at}, the file at {num_bytes}")
