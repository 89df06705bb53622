# SPDX-License-Identifier: Apache-2.0
"""How far a call is: told to a function of the caller's, or shown as a bar."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Optional, Protocol, Union

from ._display import human_bytes

ProgressFunction = Callable[[int, int], object]  # bytes done, bytes in all or 0 while unknown
ProgressLike = Union[bool, ProgressFunction, None]


class _Bar(Protocol):
    def show(self, done: int, total: int) -> None: ...
    def close(self) -> None: ...


class _TqdmBar:
    def __init__(self, title: str) -> None:
        tqdm = importlib.import_module("tqdm.auto").tqdm
        self._bar = tqdm(desc=title, unit="B", unit_scale=True, unit_divisor=1024)

    def show(self, done: int, total: int) -> None:
        self._bar.total = total or None
        self._bar.n = done
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


class _RichBar:
    def __init__(self, title: str) -> None:
        rich = importlib.import_module("rich.progress")
        columns = rich.Progress.get_default_columns()
        self._bar = rich.Progress(*columns, rich.DownloadColumn())
        self._task = self._bar.add_task(title, total=None)
        self._bar.start()

    def show(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total or None)

    def close(self) -> None:
        self._bar.stop()


class _TextBar:
    def __init__(self, title: str) -> None:
        self._title = title

    def show(self, done: int, total: int) -> None:
        share = f"{100 * done // total:3} % of {human_bytes(total)}" if total else human_bytes(done)
        sys.stderr.write(f"\r{self._title}: {share:24}")
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\n")


def _make_bar(title: str) -> _Bar:
    kinds: tuple[Callable[[str], _Bar], ...] = (_TqdmBar, _RichBar)
    for kind in kinds:
        try:
            return kind(title)
        except ImportError:
            pass  # tqdm or rich is not installed
    return _TextBar(title)


class Reporter:
    """What a call of the library reports to while the call lasts.

    `wanted` is a function, True for a bar of tqdm, of rich, or of plain text, or False or None for nothing.
    `function` is what the library takes.
    """

    def __init__(self, wanted: ProgressLike, title: str) -> None:
        self._bar: Optional[_Bar] = None
        self._last: tuple[int, int] = (0, 0)
        self.function: Optional[ProgressFunction] = None
        if wanted is True:
            self._bar = _make_bar(title)
            self.function = self._show
        elif callable(wanted):
            self.function = wanted

    def _show(self, done: int, total: int) -> None:
        self._last = (done, total)
        if self._bar is not None:
            self._bar.show(done, total)

    def close(self, *, complete: bool) -> None:
        """Ends the bar, at its end when the call is complete. Harmless a second time."""
        bar, self._bar = self._bar, None
        if bar is None:
            return
        if complete and self._last[1]:
            bar.show(self._last[1], self._last[1])
        bar.close()

    def __enter__(self) -> Optional[ProgressFunction]:
        return self.function

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close(complete=kind is None)
