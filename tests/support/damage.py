# SPDX-License-Identifier: Apache-2.0
"""Damages of one file."""

import os

ZEROED = 4096
KINDS = ("missing", "half", "empty", "zeros", "bit")  # of a file that nobody put there on purpose


def damage(file, kind, rng):
    """Damages the file, and says where. Empty: it would be as before.

    `kind`: missing, half, empty, zeros (of the last 4 KiB), pipe, folder, or a bit, whose place may follow.
    """
    data = bytearray(file.read_bytes())
    if kind in ("missing", "pipe", "folder"):
        file.unlink()
        if kind == "pipe":
            os.mkfifo(file)
        if kind == "folder":
            file.mkdir()
        return kind
    if kind in ("half", "empty"):
        kept = len(data) // 2 if kind == "half" else 0
        file.write_bytes(data[:kept])
        return kind if kept != len(data) else ""
    if kind == "zeros":
        changed = any(data[-ZEROED:])
        file.write_bytes(data[:-ZEROED] + bytes(len(data[-ZEROED:])))
        return kind if changed else ""
    number = data.rfind(b"global_seqno")
    if not data or kind == "bit number" and number < 0:
        return ""
    place = {
        "number": number + len("global_seqno") + 2,
        "first": min(17, len(data) - 1),
        "middle": len(data) // 2,
        "late": len(data) * 9 // 10,
        "index": max(0, len(data) - 220),
        "footer": max(0, len(data) - 20),
    }.get(kind.partition(" ")[2], rng.randrange(len(data)))
    bit = rng.randrange(8)
    data[place] ^= 1 << bit
    file.write_bytes(data)
    return f"bit {bit} of byte {place} of {len(data)}"
