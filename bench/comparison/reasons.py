# SPDX-License-Identifier: Apache-2.0
"""Why a peer may have a better number than varve. The page says so only where it has one."""

WRITES_AS_IS = (
    "It writes the bytes as they lie. varve digests every chunk and compresses what is new, which takes "
    "longer than this disk takes for the bytes that it saves."
)
COMPRESSES_LESS = "It spends less time on each byte: it compresses less, and stores more bytes."
NO_PROOF = (
    "It maps or reads bytes that lie there as they were, and proves none of them. varve decodes them and "
    "verifies the checksum of every chunk."
)
UNSHARED = (
    "Nothing is shared between its steps, so the step is removed without a look at others. varve finds out "
    "which chunks other steps still need, and makes the drop durable."
)
LESS_MEMORY = (
    "It writes from or reads into the tensors of the trainer directly. varve has chunks in flight between "
    "its threads, up to 256 MiB, and the memory of RocksDB."
)
SMALL_INDEX = "It opens a small index. varve opens its database."
BETTER_CODEC = "Its codec does better on this state."

SAVE = {
    "*": WRITES_AS_IS,
    "tensorstore OCDBT": COMPRESSES_LESS,
    "Orbax": COMPRESSES_LESS,
    "zarr + Icechunk": COMPRESSES_LESS,
    "ZipNN files": "It compares with no earlier step, and writes one file.",
}
LOAD = {
    "*": NO_PROOF,
    "tensorstore OCDBT": "Its coder decodes faster.",
    "ZipNN files": "It decodes faster, without a checksum.",
    "Orbax": "It makes new arrays, and those of the trainer are not written.",
}

# By metric, then by peer. "*" is for all others.
REASONS = {
    "full": SAVE,
    "same": {
        "*": "It writes everything again, and still takes less time than a look at each chunk."
    },
    "later": SAVE,
    "ten": SAVE,
    "full_bytes": {"*": BETTER_CODEC},
    "same_bytes": {
        "*": "It notes an unchanged step in fewer bytes. varve has a record for each tensor."
    },
    "later_bytes": {"*": BETTER_CODEC},
    "ten_bytes": {"*": BETTER_CODEC},
    "left_bytes": {"*": BETTER_CODEC},
    "load": LOAD,
    "load_ten": {
        **LOAD,
        "*": NO_PROOF + " It also decodes the earlier steps to which this one is a difference.",
    },
    "one": {
        "*": NO_PROOF,
        "ZipNN files": SMALL_INDEX,
        "DCP": SMALL_INDEX,
        "tensorstore OCDBT": SMALL_INDEX,
        "Orbax": SMALL_INDEX,
        "zarr + Icechunk": "The repository is open already in this process. varve opens its database.",
    },
    "drop_last": {"*": UNSHARED},
    "drop_first": {"*": UNSHARED},
    "stall": {
        "*": "It copies the state and looks at none of it. varve digests every chunk, and copies only those "
        "that changed.",
        "Orbax": "Arrays of JAX never change, so it need not wait until they are copied.",
    },
    "slowdown": {"*": "It compresses less, so the step has more of the cores for itself."},
    "memory_full": {"*": LESS_MEMORY},
    "memory_later": {"*": LESS_MEMORY},
    "memory_load": {"*": LESS_MEMORY},
}


def reason(metric, peer):
    of_metric = REASONS[metric]
    return of_metric.get(peer, of_metric["*"])
