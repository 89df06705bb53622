# SPDX-License-Identifier: Apache-2.0
"""Arrays of others, in and out: NumPy, torch, and whatever speaks __array__, DLPack or buffers.

torch and JAX are used when the caller has imported them or asks for them, and are never imported
otherwise.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any, NamedTuple

import numpy as np

from . import _core, _dtypes
from ._dtypes import Array, Bytes, DType
from ._errors import InvalidArgumentError, UnavailableError


class Memory(NamedTuple):
    """Where the elements of an array lie. `strides` counts elements, and is empty for dense memory."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    owner: object  # keeps the memory alive


def framework_name(name: str) -> str:
    """ "numpy", "torch" or "jax" for the names that safetensors and others use for them."""
    if name in ("numpy", "np"):
        return "numpy"
    if name in ("torch", "pt", "pytorch"):
        return "torch"
    if name in ("jax", "flax"):
        return "jax"
    raise InvalidArgumentError(f'framework "{name}" is not numpy, torch (pt) or jax (flax)')


def is_torch(value: object) -> bool:
    """Whether this is a tensor of torch. Imports nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_jax(value: object) -> bool:
    """Whether this is an array of JAX, or the shape and dtype of one. Imports nothing."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, (jax.Array, jax.ShapeDtypeStruct))


def framework_of(value: object) -> str:
    """The framework that an array is of, "numpy" for anything else."""
    if is_torch(value):
        return "torch"
    return "jax" if is_jax(value) else "numpy"


def import_torch() -> Any:
    """The module torch. UnavailableError: it is not installed."""
    return import_framework("torch")


def import_framework(framework: str) -> Any:
    """The module of a framework. UnavailableError: it is not installed."""
    try:
        return importlib.import_module(framework)
    except ImportError as error:
        names = {"torch": "PyTorch", "jax": "JAX", "numpy": "NumPy"}
        raise UnavailableError(f"{names[framework]} cannot be imported: {error}") from error


@functools.cache
def learn_torch() -> bool:
    """Lets the C++ module read plain tensors of torch by itself. False: this torch is too old for that."""
    torch = sys.modules["torch"]
    return _core.add_torch_type(torch.Tensor) and _core.add_torch_type(torch.nn.Parameter)


def memory_of(value: object) -> Memory:
    """The memory of an array, of the caller's own where that can be.

    Arrays that varve cannot read in place are copied: tensors on a GPU, swapped bytes, strides of part
    of an element, and elements of less than a byte.
    """
    if is_torch(value):
        return _memory_of_torch(value)
    return _memory_of_numpy(as_numpy(value))


def kind_of(value: Any) -> tuple[DType, tuple[int, ...]]:
    """Dtype and shape of an array, which may be one of torch's meta device or a shape of JAX."""
    if not is_torch(value):
        if not is_jax(value):
            value = as_numpy(value)
        return _dtypes.of_numpy(np.dtype(value.dtype)), tuple(value.shape)
    dtype = _dtypes.of_torch(value.dtype)
    return dtype, _double_last(tuple(value.shape)) if dtype.bits < 8 else value.shape


def as_numpy(value: object) -> Array:
    """A NumPy array of anything but a torch tensor, sharing its memory where that can be."""
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def _memory_of_numpy(array: Array) -> Memory:
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    dtype = _dtypes.of_numpy(array.dtype)
    if dtype.bits < 8:
        packed = _dtypes.pack(array, dtype)
        return Memory(dtype, array.shape, (), _address(packed), packed)
    strides: tuple[int, ...] = ()
    if not array.flags.c_contiguous:
        size = array.itemsize
        if array.flags.aligned and not any(stride % size for stride in array.strides):
            strides = tuple(stride // size for stride in array.strides)
        else:
            array = np.ascontiguousarray(array)
    elif not array.flags.aligned:
        array = array.copy()
    return Memory(dtype, array.shape, strides, _address(array), array)


def _memory_of_torch(tensor: Any) -> Memory:
    torch = sys.modules["torch"]
    learn_torch()
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise InvalidArgumentError(
            f"a tensor of layout {tensor.layout} on {tensor.device} has no memory to save"
        )
    plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
    if not plain and hasattr(tensor, "device_mesh"):
        raise InvalidArgumentError("a DTensor is no whole tensor: save tensor.full_tensor()")
    dtype = _dtypes.of_torch(tensor.dtype)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    shape = tuple(tensor.shape)
    if dtype.bits < 8:
        tensor = tensor.contiguous()
        shape = _double_last(shape)
    strides = () if tensor.is_contiguous() else tuple(tensor.stride())
    return Memory(dtype, shape, strides, tensor.data_ptr(), tensor)


def _double_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    # torch counts pairs of F4.
    if not shape:
        raise InvalidArgumentError("a 0-d tensor of pairs of F4 cannot be saved: give it an axis")
    return (*shape[:-1], 2 * shape[-1])


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def address_of(stored: Bytes) -> int:
    """The address of bytes that a read fills."""
    return _address(stored)


def from_bytes(stored: Bytes, dtype: DType, shape: tuple[int, ...], framework: str) -> Any:
    """The array of stored bytes, in their memory where that can be."""
    if framework == "numpy":
        return _dtypes.unpack(stored, dtype, shape)
    if framework == "jax":
        return to_jax(_dtypes.unpack(stored, dtype, shape))
    torch = import_torch()
    kind = None if dtype.torch is None else getattr(torch, dtype.torch, None)
    if kind is None:
        raise InvalidArgumentError(f"torch {torch.__version__} has no dtype for {dtype.name}")
    if dtype.bits < 8:
        if not shape or shape[-1] % 2:
            raise InvalidArgumentError(
                f"torch pairs F4 on the last axis, which {shape} does not allow"
            )
        shape = (*shape[:-1], shape[-1] // 2)
    if stored.size == 0:
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(stored).view(kind).reshape(shape)


def to_jax(array: Array, sharding: object = None) -> Any:
    """The same array in JAX, placed by `sharding` or on the default device.

    InvalidArgumentError: JAX would change its dtype, as it does with 64 bits unless they are switched on.
    """
    jax = import_framework("jax")
    kind = jax.dtypes.canonicalize_dtype(array.dtype)
    if kind != array.dtype:
        raise InvalidArgumentError(
            f'JAX would make {kind} of {array.dtype}: call jax.config.update("jax_enable_x64", True)'
        )
    return jax.device_put(array, sharding)


def from_numpy(array: Array, framework: str) -> Any:
    """The same array in another framework, sharing memory where that can be."""
    if framework == "numpy":
        return array
    if framework == "jax":
        return to_jax(array)
    dtype = _dtypes.of_numpy(array.dtype)
    return from_bytes(_dtypes.pack(array, dtype), dtype, array.shape, framework)


class Target:
    """The caller's memory that a read fills: in place when it is dense, else through a copy.

    InvalidArgumentError: another dtype or shape, or memory that cannot be written.
    """

    def __init__(self, name: str, out: Any, dtype: DType, shape: tuple[int, ...]) -> None:
        self._out = out
        self._dtype = dtype
        self._shape = shape
        if is_torch(out):
            found, found_shape = kind_of(out)
            dense = out.is_cpu and out.is_contiguous()
            address = out.data_ptr() if dense else 0
        else:
            if is_jax(out):
                raise InvalidArgumentError(
                    f'tensor {name}: arrays of JAX cannot be changed. Use framework="jax" or load_tree'
                )
            if not isinstance(out, np.ndarray):
                self._out = _writable_buffer(name, out)
            if not self._out.flags.writeable:
                raise InvalidArgumentError(f"tensor {name}: the array to read into is read-only")
            if not self._out.dtype.isnative:
                raise InvalidArgumentError(
                    f"tensor {name}: the array to read into has swapped bytes"
                )
            found, found_shape = _dtypes.of_numpy(self._out.dtype), self._out.shape
            dense = self._out.flags.c_contiguous and found.bits >= 8
            address = _address(self._out) if dense else 0
        if found is not dtype or found_shape != shape:
            raise InvalidArgumentError(
                f"tensor {name} is {dtype.name} {list(shape)}, and the array to read into is "
                f"{found.name} {list(found_shape)}"
            )
        self.num_bytes = dtype.num_bytes(shape)
        self._copy = None if dense else np.empty(self.num_bytes, np.uint8)
        self.address = address if self._copy is None else _address(self._copy)

    def finish(self) -> None:
        """Call after the read."""
        if self._copy is None:
            return
        if is_torch(self._out):
            self._out.detach().copy_(from_bytes(self._copy, self._dtype, self._shape, "torch"))
        else:
            self._out[...] = _dtypes.unpack(self._copy, self._dtype, self._shape)


def _writable_buffer(name: str, out: object) -> Array:
    try:
        return np.asarray(memoryview(out))  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgumentError(
            f"tensor {name}: cannot read into a {type(out).__name__}, which shows no memory of its own"
        ) from None
