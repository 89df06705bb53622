# SPDX-License-Identifier: Apache-2.0
"""What the numbers of a comparison are called, their units, and why a peer may have a better one."""

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
        Metric("left_bytes", "three steps left", "bytes"),
    ],
    "loads": [
        Metric("load", "load, first step", "s"),
        Metric("load_ten", "load, ten steps later", "s"),
        Metric("one", "one tensor", "s"),
        Metric("drop", "drop of the first step", "s"),
    ],
    "training": [
        Metric("stall", "stall", "s"),
        Metric("slowdown", "slowdown of the step", "share"),
        Metric("memory_full", "memory, first save", "bytes"),
        Metric("memory_later", "memory, one step later", "bytes"),
        Metric("memory_load", "memory, load", "bytes"),
    ],
}

TITLES = {
    "saves": "Saves, until durable",
    "bytes": "Bytes on the disk",
    "loads": "Loads and drops",
    "training": "What the training notices",
}

WRITES_AS_IS = (
    "It writes the bytes as they lie. varve digests every chunk and compresses what is new, which takes longer "
    "than this disk takes for the bytes that it saves."
)
COMPRESSES_LESS = (
    "It spends less time on each byte: it compresses little or with a faster coder, and stores more bytes."
)
NO_PROOF = (
    "It maps or reads bytes that lie there as they were, and proves none of them. varve decodes them and verifies "
    "the checksum of every chunk."
)
UNSHARED = (
    "Nothing is shared between its steps, so the step is removed without a look at others. varve finds out which "
    "chunks other steps still need, and makes the drop durable."
)
LESS_MEMORY = (
    "It writes from or reads into the tensors of the trainer directly. varve has chunks in flight between its "
    "threads, up to 256 MiB, and the memory of RocksDB."
)

# By metric, then by peer. "*" is for all others.
REASONS = {
    "full": {
        "*": WRITES_AS_IS,
        "tensorstore OCDBT": COMPRESSES_LESS,
        "Orbax": COMPRESSES_LESS,
        "zarr + Icechunk": COMPRESSES_LESS + " It also does not sync by itself.",
        "ZipNN files": "It looks for no step to share with, and writes one file.",
    },
    "same": {"*": "It writes everything again, and still takes less time than a look at each chunk."},
    "later": {
        "*": WRITES_AS_IS,
        "tensorstore OCDBT": COMPRESSES_LESS,
        "Orbax": COMPRESSES_LESS,
        "zarr + Icechunk": COMPRESSES_LESS,
        "ZipNN files": "It compares with no earlier step, so it reads nothing.",
    },
    "load": {
        "*": NO_PROOF,
        "tensorstore OCDBT": COMPRESSES_LESS,
        "ZipNN files": "It decodes faster, without a checksum.",
        "Orbax": "It makes new arrays, and the trainer's are not written.",
    },
    "one": {
        "*": NO_PROOF,
        "ZipNN files": "It opens one file with one index. varve opens its database.",
        "DCP": "It opens one file with one index. varve opens its database.",
        "tensorstore OCDBT": "It reads a smaller index. varve opens its database.",
        "Orbax": "It reads a smaller index. varve opens its database.",
        "zarr + Icechunk": "The repository is open already in this process. varve opens its database.",
    },
    "drop": {"*": UNSHARED},
    "stall": {
        "*": "It copies the state and looks at none of it. varve digests every chunk to copy only those that changed.",
        "Orbax": "Arrays of JAX never change, so it need not wait until they are copied.",
    },
    "slowdown": {"*": "It compresses nothing, so the step has more of the cores for itself."},
    "memory_full": {"*": LESS_MEMORY},
    "memory_load": {"*": LESS_MEMORY},
    "full_bytes": {
        "*": "Its codec does better on this state. varve's coders are made to be fast on two cores.",
    },
    "later_bytes": {"*": "Its codec does better on this state."},
    "left_bytes": {"*": "Its codec does better on this state."},
}
REASONS["ten"] = REASONS["later"]
REASONS["load_ten"] = {
    **REASONS["load"],
    "*": NO_PROOF + " Here varve also decodes the earlier steps that this one is a difference to.",
}
REASONS["memory_later"] = REASONS["memory_full"]
REASONS["same_bytes"] = {"*": "It notes an unchanged step in fewer bytes. varve has a record for each tensor."}
REASONS["ten_bytes"] = REASONS["later_bytes"]


def reason(metric, peer):
    of_metric = REASONS[metric]
    return of_metric.get(peer, of_metric["*"])


def text(value, unit):
    if unit == "share":
        return f"{100 * value:+.0f} %"
    if unit == "bytes":
        return f"{value / 1e6:,.1f} MB" if abs(value) < 1e8 else f"{value / 1e6:,.0f} MB"
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
