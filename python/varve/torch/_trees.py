# SPDX-License-Identifier: Apache-2.0
"""Nested values with tensors, such as a state_dict(), as JSON and named tensors. Nothing is pickled.

The values are those that torch.load(weights_only=True) allows: tensors, NumPy arrays and numbers, None,
bool, int, float, complex, str, bytes, list, tuple, set, dict, OrderedDict, Counter, defaultdict (which
comes back as a dict), torch.Size, torch.dtype and torch.device.

In JSON, an object has the kind of a value as its first key. Values of JSON stand for themselves, but a
float that is not finite. A reference to a tensor is {"tensor": NAME}, and says besides, where it has to:

- "dtype": the type in torch, where the store keeps the elements as those of another type.
- "strides": those of a tensor that is dense but not row-major.
- "memory", "offset": tensors with overlapping memory have the same number, and each begins at this byte.
- "device": where the tensor was, if not on the CPU.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._dtypes import BY_NAME, of_numpy, of_torch
from .._errors import CorruptionError, Error, InvalidArgumentError

Json = Any
Path = tuple[str, ...]
_LIMIT = 100  # containers within each other

# Types that varve has not, and how their elements are kept.
_AS_PAIRS = {"complex128": "float64", "complex32": "float16"}
_AS_BYTES = ("float8_e4m3fnuz", "float8_e5m2fnuz")
_PLAIN = (torch.Tensor, torch.nn.Parameter)
# The types whose elements the store has as they are.
_AS_THEY_ARE = frozenset(
    getattr(torch, known.torch)
    for known in BY_NAME.values()
    if known.torch is not None and hasattr(torch, known.torch)
)


class Named(NamedTuple):
    """A tensor or NumPy array to be saved."""

    name: str
    value: Any
    alias_of: str = ""


def dumps(tree: Json) -> bytes:
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()


def loads(text: bytes, what: str) -> Json:
    """CorruptionError names `what` is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{what} is no JSON: {error}") from None


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Turns what malformed JSON leads to into an error of the package."""
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        if isinstance(error, Error):
            raise
        raise CorruptionError(
            f"the saved values are malformed: {type(error).__name__}: {error}"
        ) from error


class Encoder:
    """Makes JSON of values and collects their tensors. A tensor's name is its path joined by "."."""

    def __init__(self) -> None:
        self._refs: dict[str, dict[str, Json]] = {}
        self._tensors: dict[str, Any] = {}

    def encode(self, value: Any, path: Path) -> Json:
        """InvalidArgumentError names the path of a value that cannot be kept."""
        return self._encode(value, path, 0)

    @property
    def num_tensors(self) -> int:
        """How many tensors there are by now."""
        return len(self._tensors)

    def tensors(self) -> list[Named]:
        """All tensors, after the last encode. This notes in the JSON which of them share memory."""
        named = []
        stored = {}
        for name, tensor in self._tensors.items():
            if isinstance(tensor, np.ndarray):
                _check_array(name, tensor)
            else:
                stored[name] = _as_stored(name, tensor, self._refs[name])
        firsts = _note_sharing(stored, self._refs)
        for name, tensor in self._tensors.items():
            named.append(Named(name, stored.get(name, tensor), firsts.get(name, "")))
        return named

    def found(self) -> tuple[list[str], list[Any]]:
        """Names and values of all tensors, as they were given."""
        return list(self._tensors), list(self._tensors.values())

    def notes(self) -> dict[str, dict[str, Json]]:
        """What the JSON says of tensors besides their names, after `tensors`."""
        return {name: dict(ref) for name, ref in self._refs.items() if len(ref) > 1}

    def note(self, notes: Mapping[str, dict[str, Json]]) -> None:
        """In place of `tensors`: says what `notes` gave for tensors that lie where these do."""
        for name, ref in notes.items():
            self._refs[name].update(ref)

    def _encode(self, value: Any, path: Path, depth: int) -> Json:
        if depth > _LIMIT:
            raise InvalidArgumentError(
                f"{_shown(path)} lies in more than {_LIMIT} containers, or contains itself"
            )
        kind = type(value)
        if kind is torch.Tensor:
            return self._add(value, path, "tensor")
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind is list:
            return self._encode_all(value, path, depth)
        if kind in (dict, collections.OrderedDict, collections.Counter, collections.defaultdict):
            return self._encode_mapping(value, path, depth)
        if isinstance(value, torch.Tensor):
            return self._add(value, path, "tensor")
        if kind is np.ndarray:
            return self._add(value, path, "array")
        if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
            return self._encode(value.item(), path, depth + 1)
        if kind is torch.Size:
            return {"size": [int(length) for length in value]}
        if kind is tuple:
            return {"tuple": self._encode_all(value, path, depth)}
        if kind in (set, frozenset):
            return {"set": self._encode_all(value, path, depth)}
        if kind is complex:
            return {"complex": [repr(value.real), repr(value.imag)]}
        if kind in (bytes, bytearray):
            return {"bytes": base64.b64encode(value).decode()}
        if kind is torch.dtype:
            return {"dtype": _type_name(value)}
        if kind is torch.device:
            return {"device": str(value)}
        raise InvalidArgumentError(
            f"{_shown(path)} is a {kind.__module__}.{kind.__qualname__}, which varve does not save: give "
            "its tensors and plain values, as its state_dict() may do"
        )

    def _encode_all(self, values: Any, path: Path, depth: int) -> list[Json]:
        return [self._encode(each, (*path, str(i)), depth + 1) for i, each in enumerate(values)]

    def _encode_mapping(self, value: Mapping[Any, Any], path: Path, depth: int) -> Json:
        kind = {collections.OrderedDict: "ordered", collections.Counter: "counter"}
        items = []
        for key, item in value.items():
            if isinstance(key, torch.Tensor):
                raise InvalidArgumentError(f"{_shown(path)} has a tensor as a key")
            inner = (*path, str(key))
            items.append(
                [self._encode(key, inner, depth + 1), self._encode(item, inner, depth + 1)]
            )
        encoded: dict[str, Json] = {kind.get(type(value), "dict"): items}
        # What load_state_dict() knows versions of modules by.
        metadata = getattr(value, "_metadata", None)
        if metadata is not None:
            encoded["metadata"] = self._encode(metadata, (*path, "_metadata"), depth + 1)
        return encoded

    def _add(self, value: Any, path: Path, kind: str) -> Json:
        wanted = name = ".".join(path)
        number = 1
        while name in self._refs:  # as of {"a": {"b": x}, "a.b": y}
            name = f"{wanted}~{number}"
            number += 1
        self._tensors[name] = value
        self._refs[name] = {kind: name}
        return self._refs[name]


class Target(NamedTuple):
    """Memory that a load fills with the tensor of a name."""

    name: str
    value: Any


class Decoder:
    """Makes the values of JSON again, in two steps: all memory first, then, when it is filled, values.

    `find(name)` gives dtype and shape of a stored tensor: the name of varve's dtype, and a shape.
    """

    def __init__(self, find: Callable[[str], tuple[str, tuple[int, ...]]]) -> None:
        self._find = find
        self._buffers: dict[int, Any] = {}
        self._plans: dict[str, _Plan] = {}
        self._values: dict[str, Any] = {}
        self._moved: dict[tuple[str, str], Any] = {}
        self._moved_buffers: dict[str, dict[int, Any]] = {}  # by device

    def allocate(self, tree: Json, devices: Mapping[str, Any] = {}) -> list[Target]:  # noqa: B006
        """New memory for each tensor of the tree, of those that lie on one another only once.

        It is memory of the CPU. A tensor that was not on the CPU, and lies on no other one, gets memory
        of its device in `devices`, by its name. CorruptionError: the tree is not as Encoder makes it.
        """
        with _reading():
            return self._allocate(tree, devices)

    def _allocate(self, tree: Json, devices: Mapping[str, Any]) -> list[Target]:
        refs = [ref for ref in _refs_of(tree) if _name_of(ref) not in self._values]
        sizes: dict[int, int] = {}
        plans = []
        for ref in refs:
            dtype, shape = self._find(_name_of(ref))
            plan = _plan_of(ref, dtype, shape)
            plans.append((ref, plan))
            if plan.memory is not None:
                sizes[plan.memory] = max(sizes.get(plan.memory, 0), plan.end)
        for memory, size in sizes.items():
            self._buffers.setdefault(memory, torch.zeros(size, dtype=torch.uint8))
        targets: list[Target] = []
        seen = set()
        for ref, plan in plans:
            name = _name_of(ref)
            if "array" in ref:
                self._values[name] = np.empty(plan.shape, plan.numpy)
                targets.append(Target(name, self._values[name]))
                continue
            device = devices.get(name) if "device" in ref else None
            self._plans[name] = plan
            self._values[name] = plan.make(self._buffers, device)
            place = (plan.memory, plan.offset, plan.dtype, plan.shape, plan.strides)
            if plan.memory is None or place not in seen:
                targets.append(Target(name, plan.stored(self._values[name])))
            seen.add(place)
        return targets

    def build(self, tree: Json, device: Optional[Any] = None) -> Any:
        """The value. A tensor that was not on the CPU goes to `device`; None: it stays on the CPU.

        CorruptionError: the tree is not as Encoder makes it.
        """
        with _reading():
            return self._build(tree, device)

    def _build(self, tree: Json, device: Optional[Any]) -> Any:
        if not isinstance(tree, (dict, list)):
            return tree
        if isinstance(tree, list):
            return [self._build(each, device) for each in tree]
        kind, value = next(iter(tree.items()), ("", None))
        if kind in ("tensor", "array"):
            return self._placed(tree, device)
        make = _MAKERS.get(kind)
        if make is None:
            raise CorruptionError(
                f"the saved values have the kind {kind!r}, which this varve lacks"
            )
        made = make(value, lambda inner: self._build(inner, device))
        if "metadata" in tree:
            made._metadata = self._build(tree["metadata"], device)
        return made

    def _placed(self, ref: dict[str, Json], device: Optional[Any]) -> Any:
        value = self._values[_name_of(ref)]
        if device is None or "device" not in ref or "array" in ref:
            return value
        key = (_name_of(ref), str(device))
        if key not in self._moved:
            plan = self._plans[_name_of(ref)]
            if plan.memory is None:
                self._moved[key] = value.to(device)
            else:
                self._moved[key] = plan.make(self._buffers_on(device))
        return self._moved[key]

    def _buffers_on(self, device: Any) -> dict[int, Any]:
        """The buffers of tensors that share memory, which share it on another device, too."""
        found = self._moved_buffers.get(str(device))
        if found is None:
            found = {number: memory.to(device) for number, memory in self._buffers.items()}
            self._moved_buffers[str(device)] = found
        return found


class _Plan(NamedTuple):
    """Where and how a tensor is made."""

    dtype: Any  # of torch
    shape: tuple[int, ...]
    strides: Optional[tuple[int, ...]]  # None: row-major
    memory: Optional[int]
    offset: int  # in bytes
    numpy: Any

    @property
    def end(self) -> int:
        strides = self.strides or ()
        last = sum((n - 1) * s for n, s in zip(self.shape, strides, strict=True))
        return self.offset + (last + 1) * int(self.dtype.itemsize)

    def make(self, buffers: Mapping[int, Any], device: Optional[Any] = None) -> Any:
        """`device` is for a tensor with memory of its own. Others lie where the buffers are."""
        if self.memory is None:
            if self.strides is None:
                return torch.empty(self.shape, dtype=self.dtype, device=device)
            return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device)
        memory = buffers[self.memory]
        first = self.offset // self.dtype.itemsize
        made = torch.empty(0, dtype=self.dtype, device=memory.device)
        return made.set_(memory.untyped_storage(), first, self.shape, self.strides)

    def stored(self, tensor: Any) -> Any:
        """The tensor as the store knows it."""
        name = _type_name(self.dtype)
        if name in _AS_PAIRS:
            return torch.view_as_real(tensor)
        return tensor.view(torch.uint8) if name in _AS_BYTES else tensor


def _plan_of(ref: dict[str, Json], stored: str, shape: tuple[int, ...]) -> _Plan:
    known = BY_NAME[stored]
    if "array" in ref:
        return _Plan(None, shape, None, None, 0, known.numpy)
    name = ref.get("dtype", known.torch)
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise InvalidArgumentError(
            f"tensor {_name_of(ref)}: torch {torch.__version__} has no dtype {name or stored}"
        )
    if name in _AS_PAIRS:
        shape = shape[:-1]
    elif known.bits < 8:
        shape = (*shape[:-1], shape[-1] // 2)
    strides = tuple(ref["strides"]) if "strides" in ref else None
    memory, offset = ref.get("memory"), ref.get("offset", 0)
    numbers = (*(strides or ()), offset, 0 if memory is None else memory)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"tensor {_name_of(ref)} has a number of memory that is none: {numbers}")
    if offset % dtype.itemsize or len(strides or shape) != len(shape):
        raise ValueError(f"tensor {_name_of(ref)} does not lie on whole elements of its shape")
    return _Plan(dtype, shape, strides, memory, offset, None)


_Make = Callable[[Json], Any]
_MAKERS: dict[str, Callable[[Any, _Make], Any]] = {
    "float": lambda value, make: float(value),
    "complex": lambda value, make: complex(float(value[0]), float(value[1])),
    "bytes": lambda value, make: base64.b64decode(value, validate=True),
    "size": lambda value, make: torch.Size(value),
    "dtype": lambda value, make: _dtype_of(value),
    "device": lambda value, make: torch.device(value),
    "tuple": lambda value, make: tuple(make(each) for each in value),
    "set": lambda value, make: {make(each) for each in value},
    "dict": lambda value, make: {make(key): make(item) for key, item in value},
    "ordered": lambda value, make: collections.OrderedDict(
        (make(key), make(item)) for key, item in value
    ),
    "counter": lambda value, make: collections.Counter(
        {make(key): make(item) for key, item in value}
    ),
}


def _refs_of(tree: Json) -> Iterator[dict[str, Json]]:
    if isinstance(tree, list):
        for each in tree:
            yield from _refs_of(each)
    elif isinstance(tree, dict):
        if "tensor" in tree or "array" in tree:
            yield tree
        else:
            for each in tree.values():
                yield from _refs_of(each)


def names_in(tree: Json) -> Iterator[str]:
    """The names of the tensors that a tree refers to."""
    return (_name_of(ref) for ref in _refs_of(tree))


def _name_of(ref: dict[str, Json]) -> str:
    return str(ref["tensor"] if "tensor" in ref else ref["array"])


@functools.cache
def _type_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_of(name: str) -> Any:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidArgumentError(f"torch {torch.__version__} has no dtype {name}")
    return dtype


def _shown(path: Path) -> str:
    return ".".join(path) or "the state"


def _check_array(name: str, array: Any) -> None:
    try:
        of_numpy(array.dtype.newbyteorder("="))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"array {name}: {error}") from None


def _as_stored(name: str, tensor: Any, ref: dict[str, Json]) -> Any:
    """The tensor with elements that the store has. InvalidArgumentError names it if there are none."""
    if type(tensor) in _PLAIN and tensor.is_cpu and tensor.dtype in _AS_THEY_ARE:
        if tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg():
            return tensor.detach()  # most tensors
    if tensor.layout != torch.strided:
        raise InvalidArgumentError(
            f"tensor {name} has the layout {tensor.layout}: save the tensors that it consists of"
        )
    if type(tensor) not in _PLAIN:
        _check_subclass(name, tensor)
    if tensor.device.type == "meta":
        raise InvalidArgumentError(f"tensor {name} has no memory yet, and cannot be saved")
    if tensor.is_quantized:
        raise InvalidArgumentError(_more_than_elements(name, tensor))
    if tensor.device.type != "cpu":
        ref["device"] = str(tensor.device)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    type_name = _type_name(tensor.dtype)
    if type_name in _AS_PAIRS:
        ref["dtype"] = type_name
        return torch.view_as_real(tensor)
    if type_name in _AS_BYTES:
        ref["dtype"] = type_name
        return tensor.view(torch.uint8)
    try:
        of_torch(tensor.dtype)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"tensor {name}: {error}") from None
    return tensor


def _check_subclass(name: str, tensor: Any) -> None:
    if hasattr(tensor, "device_mesh"):
        raise InvalidArgumentError(
            f"tensor {name} is a DTensor, of which this process holds a part: save it with "
            "torch.distributed.checkpoint, or save its full_tensor()"
        )
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        raise InvalidArgumentError(f"tensor {name} has no memory yet, and cannot be saved")
    if is_traceable_wrapper_subclass(tensor):
        raise InvalidArgumentError(_more_than_elements(name, tensor))


def _more_than_elements(name: str, tensor: Any) -> str:
    return (
        f"tensor {name} is a {type(tensor).__name__} of {tensor.dtype}, which is more than its elements: "
        "save the tensors that it consists of"
    )


class _Extent(NamedTuple):
    """The bytes between the first and the last element of a tensor, within its storage."""

    begin: int
    end: int
    name: str


def _note_sharing(stored: Mapping[str, Any], refs: Mapping[str, dict[str, Json]]) -> dict[str, str]:
    """Adds strides, memory and offset to the references. Returns aliases: the first equal tensor."""
    by_storage: dict[tuple[str, int], list[str]] = {}
    for name, tensor in stored.items():
        if not tensor.is_contiguous() and tensor.numel():
            ref = refs[name]
            if _is_dense(tensor):
                ref["strides"] = _strides_in_torch(tensor, ref)
            if _has_overlap(tensor):
                continue
        device = "" if tensor.is_cpu else str(tensor.device)
        storage = (device, tensor.untyped_storage().data_ptr())
        by_storage.setdefault(storage, []).append(name)
    firsts: dict[str, str] = {}
    number = 0
    for names in by_storage.values():
        if len(names) == 1:
            continue
        extents = [_extent_of(name, stored[name]) for name in names if stored[name].numel()]
        for group in _overlapping(sorted(extents)):
            if len(group) > 1:
                _note_group(group, number, stored, refs, firsts)
                number += 1
    return firsts


def _extent_of(name: str, tensor: Any) -> _Extent:
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    size = tensor.element_size()
    begin = tensor.storage_offset() * size
    return _Extent(begin, begin + (last + 1) * size, name)


def _overlapping(extents: list[_Extent]) -> Iterator[list[_Extent]]:
    group: list[_Extent] = []
    end = 0
    for extent in extents:
        if group and extent.begin >= end:
            yield group
            group = []
        group.append(extent)
        end = max(end, extent.end) if len(group) > 1 else extent.end
    if group:
        yield group


def _note_group(
    group: list[_Extent],
    number: int,
    stored: Mapping[str, Any],
    refs: Mapping[str, dict[str, Json]],
    firsts: dict[str, str],
) -> None:
    base = group[0].begin // 16 * 16  # so that each offset is one of whole elements
    order = {name: i for i, name in enumerate(stored)}
    seen: dict[Any, str] = {}
    for extent in sorted(group, key=lambda each: order[each.name]):
        tensor, ref = stored[extent.name], refs[extent.name]
        strides = _strides_in_torch(tensor, ref)
        ref.update(memory=number, offset=extent.begin - base, strides=strides)
        key = (extent.begin, tensor.dtype, tensor.shape, tensor.stride())
        first = seen.setdefault(key, extent.name)
        if first != extent.name:
            firsts[extent.name] = first


def _strides_in_torch(stored: Any, ref: dict[str, Json]) -> list[int]:
    strides = list(stored.stride())
    if ref.get("dtype") in _AS_PAIRS:  # one axis more, of pairs
        return [stride // 2 for stride in strides[:-1]]
    return strides


def _axes(tensor: Any) -> list[tuple[int, int]]:
    """Stride and length of each axis of more than one element, by rising stride."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return sorted((stride, length) for stride, length in pairs if length > 1)


def _is_dense(tensor: Any) -> bool:
    """Whether the elements lie side by side, each once, in whatever order of axes."""
    expected = 1
    for stride, length in _axes(tensor):
        if stride != expected:
            return False
        expected *= length
    return True


def _has_overlap(tensor: Any) -> bool:
    """Whether two elements may have one place."""
    end = 0
    for stride, length in _axes(tensor):
        if stride <= end:
            return True
        end += stride * (length - 1)
    return False
