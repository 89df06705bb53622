# SPDX-License-Identifier: Apache-2.0
"""Tables for notebooks, and sizes for people."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def human_bytes(count: int) -> str:
    """ "1.5 MiB" for 1572864."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def human_metrics(metrics: dict[str, float]) -> str:
    """ "accuracy=0.5, loss=2.1"."""
    return ", ".join(f"{name}={value:.6g}" for name, value in metrics.items())


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose texts are escaped."""

    def line(tag: str, cells: Iterable[object]) -> str:
        return (
            "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
        )

    body = "".join(line("td", row) for row in rows)
    return f"<p>{html.escape(title)}</p><table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"
