# SPDX-License-Identifier: Apache-2.0
"""What the numbers of a comparison are called, and how they are written."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Metric:
    key: str
    title: str
    unit: str  # "s", "bytes" or "share". Less is better


GROUPS = {
    "saves": [
        Metric("full", "first save", "s"),
        Metric("same", "unchanged", "s"),
        Metric("later", "one step later", "s"),
        Metric("ten", "ten steps later", "s"),
    ],
    "bytes": [
        Metric("full_bytes", "first save", "bytes"),
        Metric("same_bytes", "unchanged", "bytes"),
        Metric("later_bytes", "one step later", "bytes"),
        Metric("ten_bytes", "ten steps later", "bytes"),
        Metric("left_bytes", "two steps left", "bytes"),
    ],
    "loads": [
        Metric("load", "load, first step", "s"),
        Metric("load_ten", "load, ten steps later", "s"),
        Metric("one", "one tensor", "s"),
        Metric("drop_last", "drop, last step", "s"),
        Metric("drop_first", "drop, first step", "s"),
    ],
    "training": [
        Metric("stall", "stall", "s"),
        Metric("slowdown", "slowdown of the step", "share"),
        Metric("memory_full", "memory, first save", "bytes"),
        Metric("memory_later", "memory, one step later", "bytes"),
        Metric("memory_load", "memory, load", "bytes"),
    ],
}

SIZE_TITLES = {"17M": "17 million parameters", "100M": "100 million parameters"}

TITLES = {
    "saves": "Saves, until durable",
    "bytes": "Bytes on the disk",
    "loads": "Loads and drops",
    "training": "What the training notices",
}


def text(value, unit):
    if unit == "share":
        return f"{100 * value:+.0f} %"
    if unit == "bytes":
        if abs(value) < 1e6:
            return f"{value / 1e3:.0f} kB"
        return f"{value / 1e6:.1f} MB" if abs(value) < 1e8 else f"{value / 1e6:,.0f} MB"
    if value >= 10:
        return f"{value:.1f} s"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{1e3 * value:.0f} ms" if value >= 0.02 else f"{1e3 * value:.1f} ms"


def with_spread(each, unit):
    """The median, and the least and most where these look different."""
    median = text(each["median"], unit)
    least, most = text(each["least"], unit), text(each["most"], unit)
    return median if least == most else f"{median} ({least} to {most})"
