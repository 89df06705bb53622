# SPDX-License-Identifier: Apache-2.0
"""What a process says that lacks something, and how one may end that gets no memory."""

import os
import re
import subprocess

import harness

# What an error says that names what is lacking.
WORDS = {
    "disk": ["No space left on device"],
    "quota": ["Disk quota exceeded"],
    "descriptors": ["Too many open files", "descriptors"],
    "memory": ["bad_alloc", "memory", "Resource temporarily unavailable"],
    "threads": ["Resource temporarily unavailable"],
}

ENDS_OF_ROCKSDB = (
    r"aborted in thread rocksdb:",
    r"rocksdb::\S.*Assertion",
    r"crashed in \S*/lib(rocksdb|lz4)\.so",
)
# Frames between who could not go on and abort.
RUNTIME = r"\S*/(libvarve_abort_site|libc|libstdc\+\+|libgcc_s)\.so"


def ended_by_library(stderr):
    """Whether a library, and not varve, could not go on without memory.

    RocksDB cannot if an allocation fails in one of its own threads, while it takes a state of a family (one
    of its asserts fails), in a destructor, or where it first counts for a thread. Its caches write to the
    aligned memory that they ask for, whether they get it or not, and lz4 does for it. An iterator of folders
    of libstdc++ cannot if it gets no memory for a name. A value of nlohmann::json collects what it holds in a
    list while it is destroyed.
    """
    if any(re.search(cause, stderr) for cause in ENDS_OF_ROCKSDB):
        return True
    frames = [line for line in stderr.splitlines() if line.startswith("/")]
    if any(re.search(r"/libstdc\+\+\.so\S*\(_ZN\S*10filesystem", frame) for frame in frames):
        return True
    callers = [frame for frame in frames if not re.match(RUNTIME, frame)]
    if not callers:
        return False
    if re.search(r"/librocksdb\.so|\(_ZNK?7rocksdb", callers[0]):
        return True
    return (
        re.match(
            r"nlohmann::\S*::basic_json<.*::(json_value::destroy|~basic_json)",
            function_of(callers[0]),
        )
        is not None
    )


def function_of(frame):
    """The function in a frame of a program, "" if nobody knows."""
    place = re.match(r"(/\S+)\(\+0x([0-9a-f]+)\)", frame)
    if not place:
        return ""
    before = f"{int(place[2], 16) - 1:x}"  # the frame is where the call returns to
    done = subprocess.run(["addr2line", "-Cfe", place[1], before], capture_output=True, text=True)
    return done.stdout.split("\n", 1)[0]


def least_kib():
    """The least address space in which the command starts at all, with what says where it aborts."""
    env = os.environ | {"LD_PRELOAD": harness.program("libvarve_abort_site.so")}
    low, high = 0, 4 << 20
    while high - low > 1024:
        middle = (low + high) // 2
        done = subprocess.run(
            ["bash", "-c", f"ulimit -v {middle}; exec {harness.program('varve')} version"],
            capture_output=True,
            env=env,
        )
        low, high = (low, middle) if done.returncode == 0 else (middle, high)
    return high
