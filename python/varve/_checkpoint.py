# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that is open for reading."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np

from . import _arrays, _core, _dtypes, _state
from ._display import html_table, human_bytes, human_metrics
from ._errors import InvalidArgumentError, NotFoundError
from ._progress import ProgressLike, Reporter
from ._tensor import Tensor
from ._tree import flatten, rebuild


class Checkpoint:
    """All state of a run at a step: a mapping from names to lazy tensors.

    Made by `store[...]`. It is good until the store is closed. Thread rule: any number of threads. When
    another process drops the step meanwhile, reads give NotFoundError, never wrong bytes.
    """

    def __init__(self, reader: _core.Reader) -> None:
        self._reader = reader
        self._info = reader.info()
        self._listed: Optional[dict[str, _core.TensorInfo]] = None

    @property
    def info(self) -> _core.CheckpointInfo:
        """Run, step, time, parent, metrics, tags and sizes, as of when it was opened."""
        return self._info

    @property
    def run(self) -> str:
        return self._info.run

    @property
    def step(self) -> int:
        return self._info.step

    @property
    def metrics(self) -> dict[str, float]:
        return self._info.metrics

    @property
    def tags(self) -> list[str]:
        return self._info.tags

    @property
    def state(self) -> Optional[dict[str, Any]]:
        """The trainer state, or None when the save set none."""
        progress = self._reader.read_progress()
        return None if progress is None else _state.from_progress(progress)

    def keys(self) -> list[str]:
        """The names of all tensors, ordered. Shards that have layouts are one tensor."""
        return list(self._infos())

    def values(self) -> list[Tensor]:
        return [Tensor(self, info) for info in self._infos().values()]

    def items(self) -> list[tuple[str, Tensor]]:
        return [(name, Tensor(self, info)) for name, info in self._infos().items()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos())

    def __len__(self) -> int:
        return len(self._infos())

    def __contains__(self, name: object) -> bool:
        return name in self._infos()

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of a name, not read yet. NotFoundError names the tensor and the step."""
        return Tensor(self, self._find(name))

    def read(self, name: str, out: Any = None, *, framework: str = "numpy") -> Any:
        """Reads a whole tensor into new memory, or into `out`, which is returned.

        `out` is a NumPy array, a torch tensor on any device, or a writable buffer, of the tensor's own
        dtype and shape. It is filled in place when it is dense memory of the CPU, else through a copy. Its
        contents are unspecified after an error. InvalidArgumentError: another dtype or shape.
        """
        result: dict[str, Any] = self.load([name], out={name: out}) if out is not None else {}
        return result[name] if result else self._load([name], framework)[name]

    def load(
        self,
        patterns: Union[str, Sequence[str], None] = None,
        *,
        framework: str = "numpy",
        out: Optional[Mapping[str, Any]] = None,
    ) -> dict[str, Any]:
        """Reads many tensors in parallel: a dict from names to arrays.

        `patterns` are globs, where "*" is any run of characters. None: all tensors, or those that `out`
        names. With `out` the arrays there are filled, as `read` does. Ctrl-C ends the read. NotFoundError: a
        pattern without "*" names no tensor, or `out` has no array for a name.
        """
        framework = _arrays.framework_name(framework)
        if out is None:
            return self._load(self._match(patterns), framework)
        names = list(out) if patterns is None else self._match(patterns)
        arrays = []
        for name in names:
            _require_name(name)
            if name not in out:
                raise NotFoundError(f"out has no array for tensor {name}")
            arrays.append(out[name])
        if any(map(_arrays.is_torch, arrays)) and _arrays.learn_torch():
            if self._reader.read_torch(names, arrays):
                return dict(zip(names, arrays, strict=True))
        self._expect(len(names))
        targets = {}
        for name in names:
            info = self._find(name)
            dtype, shape = _dtypes.BY_NAME[info.dtype], tuple(info.shape)
            targets[name] = _arrays.Target(name, out[name], dtype, shape)
        self._reader.read_many(
            [(name, target.address, target.num_bytes, []) for name, target in targets.items()]
        )
        for target in targets.values():
            target.finish()
        return {name: out[name] for name in names}

    def load_tree(self, like: Any) -> Any:
        """Reads what `save` made of a tree: a new tree of the same containers as `like`.

        Each array is of the framework of the leaf in its place, with that leaf's dtype and shape, in JAX with
        its sharding too. Numbers come back as numbers. What `like` does not name is not read.
        NotFoundError: the checkpoint lacks a name of `like`. InvalidArgumentError: another dtype or shape.
        """
        wanted = dict(flatten(like))
        for name, leaf in wanted.items():
            _check_like(self._find(name), leaf)
        arrays = self._load(list(wanted), "numpy")
        return rebuild(like, lambda name, leaf: _as_leaf(arrays[name], leaf))

    def list_bytes(self) -> list[str]:
        """The names of the opaque items, ordered."""
        return self._reader.list_bytes()

    def read_bytes(self, name: str) -> bytes:
        """An opaque item, as put_bytes saved it. NotFoundError: there is no such item."""
        return self._reader.read_bytes(name)

    def export_files(
        self,
        out: Union[str, os.PathLike[str]],
        *,
        format: str = "safetensors",  # noqa: A002
        include: Union[str, Sequence[str]] = (),
        exclude: Union[str, Sequence[str]] = (),
        max_shard_bytes: Optional[int] = None,
        overwrite: bool = False,
        progress: ProgressLike = None,
    ) -> list[str]:
        """Writes the checkpoint in a format that others read, as `varve export` does. Returns the files.

        `format` is "safetensors", "dcp", "npz", "infinitrain" or "llmc". `out` is the file, or a folder for
        files with the usual names. `include` and `exclude` are globs of names. With `max_shard_bytes` a
        checkpoint is cut into several files of safetensors and an index. Files appear whole or not at all.
        What a user should know comes as a warning. AlreadyExistsError: a file is there, and `overwrite` is
        False. FailedPreconditionError: the format cannot hold the checkpoint.
        """
        with Reporter(progress, f"export {self}") as function:
            files, notes = _core.export_files(
                self._reader,
                os.fspath(out),
                format,
                [include] if isinstance(include, str) else list(include),
                [exclude] if isinstance(exclude, str) else list(exclude),
                max_shard_bytes,
                overwrite,
                function,
            )
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return files

    def __str__(self) -> str:
        return f"{self.run}@{self.step}"

    def __repr__(self) -> str:
        return f"<varve.Checkpoint {self}: {len(self)} tensors, {human_bytes(self._info.logical_bytes)}>"

    def _repr_html_(self) -> str:
        shown = self.values()
        rows: list[tuple[object, ...]] = [
            (t.name, t.dtype_name, list(t.shape), human_bytes(t.nbytes), t.role)
            for t in shown[:200]
        ]
        if len(shown) > len(rows):
            rows.append((f"... {len(shown) - len(rows)} more", "", "", "", ""))
        title = f"Checkpoint {self}: {len(shown)} tensors, {human_bytes(self._info.logical_bytes)}"
        if self.metrics:
            title += f", {human_metrics(self.metrics)}"
        return html_table(title, ("tensor", "dtype", "shape", "bytes", "role"), rows)

    def _ipython_key_completions_(self) -> list[str]:
        return self.keys()

    def _infos(self) -> dict[str, _core.TensorInfo]:
        if self._listed is None:
            infos: dict[str, _core.TensorInfo] = {}
            for info in self._reader.list_tensors():
                infos.setdefault(info.name, info)
            self._listed = infos
        return self._listed

    def _expect(self, num_names: int) -> None:
        """Lists the tensors when so many are looked up that it is quicker than to find each."""
        if 8 * num_names > self._info.num_tensors:
            self._infos()

    def _find(self, name: str) -> _core.TensorInfo:
        _require_name(name)
        found = None if self._listed is None else self._listed.get(name)
        return self._reader.find(name) if found is None else found

    def _match(self, patterns: Union[str, Sequence[str], None]) -> list[str]:
        if patterns is None:
            return self.keys()
        wanted: dict[str, None] = {}
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            if "*" in pattern:
                glob = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
                wanted.update((name, None) for name in self._infos() if glob.fullmatch(name))
            else:
                wanted[self._find(pattern).name] = None
        return list(wanted)

    def _load(self, names: Sequence[str], framework: str) -> dict[str, Any]:
        framework = _arrays.framework_name(framework)
        reads: list[tuple[str, int, int, list[tuple[int, int]]]] = []
        stored = []
        self._expect(len(names))
        for name in names:
            info = self._find(name)
            memory = np.empty(info.logical_bytes, np.uint8)
            stored.append((name, memory, _dtypes.BY_NAME[info.dtype], tuple(info.shape)))
            reads.append((name, _arrays.address_of(memory), memory.size, []))
        self._reader.read_many(reads)
        return {
            name: _arrays.from_bytes(memory, dtype, shape, framework)
            for name, memory, dtype, shape in stored
        }

    def _read_into(
        self, name: str, address: int, num_bytes: int, ranges: list[tuple[int, int]]
    ) -> None:
        self._reader.read_many([(name, address, num_bytes, ranges)])


def _require_name(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a tensor's name is a string, not {name!r}")


def _check_like(info: _core.TensorInfo, leaf: Any) -> None:
    dtype: Optional[_dtypes.DType] = None
    shape: tuple[int, ...] = ()
    if not isinstance(leaf, (bool, int, float, complex)):
        dtype, shape = _arrays.kind_of(leaf)
    if shape != tuple(info.shape) or (dtype is not None and dtype.name != info.dtype):
        found = "number" if dtype is None else f"{dtype.name} {list(shape)}"
        raise InvalidArgumentError(
            f"tensor {info.name} is {info.dtype} {list(info.shape)}, and the tree has a {found} there"
        )


def _as_leaf(array: Any, leaf: Any) -> Any:
    if isinstance(leaf, (bool, int, float, complex)):
        return type(leaf)(array.item())
    framework = _arrays.framework_of(leaf)
    if framework == "jax":
        return _arrays.to_jax(array, leaf.sharding)
    made = _arrays.from_numpy(array, framework)
    return made.to(leaf.device) if framework == "torch" else made
