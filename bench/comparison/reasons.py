# SPDX-License-Identifier: Apache-2.0
"""Why a peer may have a better number than varve. The page says so only where it has one.

A peer stands only where its reason is true of it. Where it has none, the page cannot be written.
"""

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

# Their files have the bytes as they were.
PLAIN = ("safetensors", "torch.save", "DCP")
COMPRESSING = ("tensorstore OCDBT", "Orbax", "zarr + Icechunk", "ZipNN files")
# A step is a file or a folder of its own.
APART = (*PLAIN, "tensorstore OCDBT", "Orbax", "ZipNN files")


def each(peers, why):
    return dict.fromkeys(peers, why)


SAVE = {
    **each(PLAIN, WRITES_AS_IS),
    **each(COMPRESSING, COMPRESSES_LESS),
    "ZipNN files": "It compares with no earlier step, and writes one file.",
}
BETTER_CODECS = each((*COMPRESSING, "restic on safetensors"), BETTER_CODEC)
LOAD = {
    **each(PLAIN, NO_PROOF),
    "tensorstore OCDBT": "Its coder decodes faster.",
    "ZipNN files": "It decodes faster, without a checksum.",
    "Orbax": "It makes new arrays, and those of the trainer are not written.",
}
LESS_MEMORY_IN_SAVES = each(PLAIN, LESS_MEMORY)

# By metric, then by peer.
REASONS = {
    "full": SAVE,
    "same": each(
        (*PLAIN, *COMPRESSING),
        "It writes everything again, and still takes less time than a look at each chunk.",
    ),
    "later": SAVE,
    "ten": SAVE,
    "full_bytes": BETTER_CODECS,
    "same_bytes": {
        "restic on safetensors": "It notes an unchanged step in fewer bytes. varve has a record for each "
        "tensor.",
    },
    "later_bytes": BETTER_CODECS,
    "ten_bytes": BETTER_CODECS,
    "left_bytes": BETTER_CODECS,
    "load": LOAD,
    "load_ten": {
        **LOAD,
        **each(
            PLAIN,
            NO_PROOF + " It also decodes the earlier steps to which this one is a difference.",
        ),
    },
    "one": {
        **each(("safetensors", "torch.save"), NO_PROOF),
        **each(("ZipNN files", "DCP", "tensorstore OCDBT", "Orbax"), SMALL_INDEX),
    },
    "drop_last": each(APART, UNSHARED),
    "drop_first": each(APART, UNSHARED),
    "stall": {
        "DCP": "It copies the state and looks at none of it. varve digests every chunk, and copies only "
        "those that changed.",
        "Orbax": "Arrays of JAX never change, so it need not wait until they are copied.",
    },
    "slowdown": each(
        ("DCP", "Orbax"), "It compresses less, so the step has more of the cores for itself."
    ),
    "memory_full": LESS_MEMORY_IN_SAVES,
    "memory_later": LESS_MEMORY_IN_SAVES,
    "memory_load": {"DCP": LESS_MEMORY},
}


def reason(metric, peer):
    """None where none is known."""
    return REASONS[metric].get(peer)
