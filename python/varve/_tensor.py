# SPDX-License-Identifier: Apache-2.0
"""A tensor of a checkpoint, which is read when it is asked for."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from . import _arrays, _core, _dtypes
from ._display import html_table, human_bytes
from ._dtypes import Array

if TYPE_CHECKING:
    from ._checkpoint import Checkpoint

_Index = Union[int, slice, None, Any]


class Tensor:
    """A lazy array of a checkpoint. Indexing reads only the chunks that overlap.

    `tensor[...]`, `numpy.asarray(tensor)` and `torch.from_dlpack(tensor)` read all of it. Each read
    gives new memory, which the caller owns. Thread rule: any number of threads.
    """

    def __init__(self, checkpoint: Checkpoint, info: _core.TensorInfo) -> None:
        self._checkpoint = checkpoint
        self._info = info
        self._dtype = _dtypes.BY_NAME[info.dtype]
        self._shape = tuple(info.shape)

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements on each axis."""
        return self._shape

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for length in self._shape:
            count *= length
        return count

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype, one of ml_dtypes where NumPy has none of its own."""
        return self._dtype.numpy

    @property
    def dtype_name(self) -> str:
        """The name that varve and safetensors use, e.g. "BF16"."""
        return self._dtype.name

    @property
    def nbytes(self) -> int:
        """Raw bytes in the store, where elements of less than a byte are packed."""
        return self._info.logical_bytes

    @property
    def digest(self) -> Optional[str]:
        """32 hexadecimal digits: tensors of one store and dtype with the same digest are equal.

        None where it is not known, as for a tensor of several shards.
        """
        return self._info.digest

    @property
    def role(self) -> str:
        """ "other", "parameter", "buffer" or "optimizer"."""
        return self._info.role

    @property
    def derived_from(self) -> str:
        """The tensor of which this one is the rounded copy. Empty: of none."""
        return self._info.derived_from

    @property
    def alias_of(self) -> str:
        """The tensor with which this one shared its memory. Empty: with none."""
        return self._info.alias_of

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a 0-d tensor")
        return self._shape[0]

    def __getitem__(self, index: _Index) -> Any:
        """A NumPy array, or a scalar, as NumPy gives for integers, slices, `...` and None.

        IndexError: an integer out of range, too many indices. TypeError: an index that is an array.
        A slice with a step reads all that lies between its ends.
        """
        ranges, rest = _plan(index, self._shape)
        if self._dtype.bits < 8:  # such slices end within bytes
            return self._read_all()[index]
        return self._read(ranges)[rest]

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Array:
        if copy is False:
            raise ValueError("a tensor of a checkpoint cannot be an array without a copy")
        array = self._read_all()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        array = self._read_all()
        if self._dtype.name == "BF16":
            array = _core.export_bfloat16(_arrays.address_of(array), list(array.shape), array)
        return array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the CPU

    def numpy(self) -> Array:
        """All of it as a NumPy array."""
        return self._read_all()

    def torch(self) -> Any:
        """All of it as a torch tensor on the CPU. Imports torch. UnavailableError: it is missing."""
        return self._checkpoint.read(self.name, framework="torch")

    def jax(self) -> Any:
        """All of it as an array of JAX. Imports jax. UnavailableError: it is missing."""
        return self._checkpoint.read(self.name, framework="jax")

    def __repr__(self) -> str:
        kind = f"{self._dtype.name} {list(self._shape)}"
        return f"<varve.Tensor {self.name!r}: {kind}, {human_bytes(self.nbytes)}>"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [
            ("dtype", self._dtype.name),
            ("shape", list(self._shape)),
            ("bytes", human_bytes(self.nbytes)),
            ("role", self.role),
            ("derived from", self.derived_from or "-"),
            ("chunks", self._info.num_chunks),
            ("digest", self.digest or "-"),
        ]
        return html_table(f"Tensor {self.name} of {self._checkpoint}", ("", ""), rows)

    def _read_all(self) -> Array:
        return self._checkpoint.read(self.name)  # type: ignore[no-any-return]

    def _read(self, ranges: list[tuple[int, int]]) -> Array:
        shape = tuple(end - begin for begin, end in ranges)
        stored = np.empty(self._dtype.num_bytes(shape), np.uint8)
        if stored.size:
            self._checkpoint._read_into(self.name, _arrays.address_of(stored), stored.size, ranges)
        return _dtypes.unpack(stored, self._dtype, shape)


def _plan(
    index: _Index, shape: tuple[int, ...]
) -> tuple[list[tuple[int, int]], tuple[_Index, ...]]:
    """One range an axis that covers what is asked for, and the index to apply to what they give."""
    parts = list(index) if isinstance(index, tuple) else [index]
    axes = sum(1 for part in parts if part is not None and part is not Ellipsis)
    if axes > len(shape):
        raise IndexError(
            f"too many indices: the tensor has {len(shape)} axes, and {axes} were indexed"
        )
    ellipses = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    fill: list[_Index] = [slice(None)] * (len(shape) - axes)
    if ellipses:
        # Kept for what it says to NumPy: with it, a single element is a 0-d array, not a scalar.
        parts[ellipses[0] : ellipses[0] + 1] = [*fill, Ellipsis]
    else:
        parts += fill
    ranges: list[tuple[int, int]] = []
    rest: list[_Index] = []
    for part in parts:
        if part is None or part is Ellipsis:
            rest.append(part)
            continue
        covered, left = _cover(part, shape[len(ranges)], len(ranges))
        ranges.append(covered)
        rest.append(left)
    return ranges, tuple(rest)


def _cover(part: Any, length: int, axis: int) -> tuple[tuple[int, int], _Index]:
    if isinstance(part, slice):
        taken = range(length)[part]
        if not taken:
            return (0, 0), slice(None)
        first, last = min(taken[0], taken[-1]), max(taken[0], taken[-1])
        return (first, last + 1), slice(None, None, taken.step)
    if isinstance(part, (bool, np.bool_)):
        raise TypeError(
            "a checkpoint's tensor takes no boolean index: read it, then index the array"
        )
    try:
        i = operator.index(part)
    except TypeError:
        raise TypeError(
            f"a checkpoint's tensor takes integers, slices, ... and None, not {type(part).__name__}: "
            "read it, then index the array"
        ) from None
    if not -length <= i < length:
        raise IndexError(f"index {i} is out of bounds for axis {axis} with size {length}")
    i %= length
    return (i, i + 1), 0
