# SPDX-License-Identifier: Apache-2.0
"""Element types: varve's names (those of safetensors), and what NumPy and torch call them.

NumPy keeps an element of less than a byte in a byte of its own. varve keeps such elements packed, the
first in the lowest bits, as torch and the safetensors format do.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ._errors import InvalidArgumentError

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]


class DType(NamedTuple):
    """An element type."""

    name: str
    bits: int
    numpy: np.dtype[Any]
    torch: str | None  # None: torch has no such type

    def num_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a dense tensor, where elements of less than a byte are packed."""
        count = 1
        for length in shape:
            count *= length
        return (count * self.bits + 7) // 8


_ALL = (
    DType("BOOL", 8, np.dtype(np.bool_), "bool"),
    DType("U8", 8, np.dtype(np.uint8), "uint8"),
    DType("I8", 8, np.dtype(np.int8), "int8"),
    DType("U16", 16, np.dtype(np.uint16), "uint16"),
    DType("I16", 16, np.dtype(np.int16), "int16"),
    DType("U32", 32, np.dtype(np.uint32), "uint32"),
    DType("I32", 32, np.dtype(np.int32), "int32"),
    DType("U64", 64, np.dtype(np.uint64), "uint64"),
    DType("I64", 64, np.dtype(np.int64), "int64"),
    DType("BF16", 16, np.dtype(ml_dtypes.bfloat16), "bfloat16"),
    DType("F16", 16, np.dtype(np.float16), "float16"),
    DType("F32", 32, np.dtype(np.float32), "float32"),
    DType("F64", 64, np.dtype(np.float64), "float64"),
    DType("F8_E4M3", 8, np.dtype(ml_dtypes.float8_e4m3fn), "float8_e4m3fn"),
    DType("F8_E5M2", 8, np.dtype(ml_dtypes.float8_e5m2), "float8_e5m2"),
    DType("F8_E8M0", 8, np.dtype(ml_dtypes.float8_e8m0fnu), "float8_e8m0fnu"),
    DType("F4", 4, np.dtype(ml_dtypes.float4_e2m1fn), "float4_e2m1fn_x2"),
    DType("F6_E2M3", 6, np.dtype(ml_dtypes.float6_e2m3fn), None),
    DType("F6_E3M2", 6, np.dtype(ml_dtypes.float6_e3m2fn), None),
    DType("C64", 64, np.dtype(np.complex64), "complex64"),
)
BY_NAME = {dtype.name: dtype for dtype in _ALL}
_BY_NUMPY = {dtype.numpy: dtype for dtype in _ALL}
_BY_TORCH = {dtype.torch: dtype for dtype in _ALL}


def of_numpy(dtype: np.dtype[Any]) -> DType:
    """The type of a NumPy array. InvalidArgumentError: varve has no such type."""
    found = _BY_NUMPY.get(dtype)
    if found is None:
        raise InvalidArgumentError(f"varve has no dtype for NumPy's {dtype}")
    return found


@functools.cache  # the string of a dtype takes longer than all else of a tensor
def of_torch(dtype: Any) -> DType:
    """The type of a torch tensor. InvalidArgumentError: varve has no such type."""
    found = _BY_TORCH.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise InvalidArgumentError(f"varve has no dtype for {dtype}")
    return found


def pack(array: Array, dtype: DType) -> Bytes:
    """The bytes that varve stores for a dense NumPy array, without a copy where that can be."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if dtype.bits >= 8:
        return flat
    per_group, group_bytes = (2, 1) if dtype.bits == 4 else (4, 3)
    padded = np.zeros(-(-flat.size // per_group) * per_group, np.uint32)
    padded[: flat.size] = flat & ((1 << dtype.bits) - 1)
    words = np.zeros(padded.size // per_group, np.uint32)
    for i in range(per_group):
        words |= padded[i::per_group] << np.uint32(i * dtype.bits)
    groups = words.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :group_bytes]
    return np.ascontiguousarray(groups).reshape(-1)


def unpack(stored: Bytes, dtype: DType, shape: tuple[int, ...]) -> Array:
    """The NumPy array of stored bytes. It shares their memory unless elements were packed."""
    if dtype.bits >= 8:
        return stored.view(dtype.numpy).reshape(shape)
    per_group, group_bytes = (2, 1) if dtype.bits == 4 else (4, 3)
    groups = stored.reshape(-1, group_bytes).astype(np.uint32)
    words = np.zeros(len(groups), np.uint32)
    for i in range(group_bytes):
        words |= groups[:, i] << np.uint32(8 * i)
    elements = np.empty(len(groups) * per_group, np.uint8)
    for i in range(per_group):
        elements[i::per_group] = (words >> np.uint32(i * dtype.bits)) & ((1 << dtype.bits) - 1)
    return elements.view(dtype.numpy).reshape(shape)
