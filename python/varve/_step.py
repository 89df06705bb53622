# SPDX-License-Identifier: Apache-2.0
"""A save in progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Optional

from . import _arrays, _core, _state
from ._errors import FailedPreconditionError
from ._progress import Reporter


class Step:
    """A checkpoint that is being saved. Made by `store.save`.

        with store.save(100) as step:   # commits at the end, abandons on an exception
            step["model.wte"] = wte

    Memory: a save reads arrays in place when it commits. They must not change until then. varve keeps
    them alive. Attributes: `metrics`, a dict, and `tags`, a list, which the commit stores, and `report`,
    None before the commit. Thread rule: one thread at a time.
    """

    def __init__(
        self,
        writer: _core.Writer,
        metrics: Mapping[str, float],
        tags: Iterable[str],
        reporter: Reporter,
    ) -> None:
        self._writer = writer
        self._reporter = reporter
        self._state: Optional[Mapping[str, Any]] = None
        self._over = False
        self.metrics: dict[str, float] = dict(metrics)
        self.tags: list[str] = [tags] if isinstance(tags, str) else list(tags)
        self.report: Optional[_core.SaveReport] = None

    def __setitem__(self, name: str, array: Any) -> None:
        """As put(name, array)."""
        self.put(name, array)

    def put(
        self,
        name: str,
        array: Any,
        *,
        role: str = "other",
        derived_from: str = "",
        alias_of: str = "",
    ) -> None:
        """Adds a tensor: NumPy, torch, or anything with __array__, __dlpack__ or the buffer protocol.

        `role` is "other", "parameter", "buffer" or "optimizer". `derived_from` names the F32 tensor of which
        this 16-bit tensor is the rounded copy, and is then stored as a reference. `alias_of` names a tensor
        that shared its memory. InvalidArgumentError: a bad name, dtype or role, or a name that the
        checkpoint has already. The save can go on after it.
        """
        if self._writer.put_torch(name, array, role, derived_from, alias_of):
            return  # most tensors of torch
        dtype, shape, strides, address, owner = _arrays.memory_of(array)
        self._writer.put(
            name, dtype.name, shape, strides, address, owner, role, derived_from, alias_of
        )

    def put_bytes(self, name: str, value: bytes) -> None:
        """Adds an opaque item of up to 64 MiB, which is copied."""
        self._writer.put_bytes(name, bytes(value))

    @property
    def state(self) -> Optional[Mapping[str, Any]]:
        """The trainer state: values of JSON, floats exact. It is stored as it is when it is set."""
        return self._state

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        self._writer.set_progress(_state.to_progress(state))
        self._state = state

    def commit(self) -> _core.SaveReport:
        """Makes the checkpoint durable, then visible in one atomic step.

        Nothing is visible after an error. Ctrl-C ends the commit, unless it has come to its end: then the
        checkpoint is there, whole, although KeyboardInterrupt is raised. FailedPreconditionError: the save
        is over.
        """
        if self._over:
            raise FailedPreconditionError("the save is over")
        try:
            for name, value in self.metrics.items():
                self._writer.set_metric(name, value)
            for tag in self.tags:
                self._writer.add_tag(tag)
            self.report = self._writer.commit()
        except BaseException:
            self.abandon()
            raise
        self._over = True
        self._reporter.close(complete=True)
        return self.report

    def abandon(self) -> None:
        """Gives up and removes what was written. Harmless after a commit or a second time."""
        if not self._over:
            self._over = True
            self._reporter.close(complete=False)
            try:
                self._writer.abandon()
            except FailedPreconditionError:
                pass  # the store is closed, which abandoned the save

    def __enter__(self) -> Step:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if kind is not None:
            self.abandon()
        elif not self._over:
            self.commit()
