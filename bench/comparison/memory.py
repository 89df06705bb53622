# SPDX-License-Identifier: Apache-2.0
"""The most memory that a save and a load take, above that of the state. Each subject has a process of its own."""

import ctypes
import gc
import json
import pathlib
import re
import resource
import subprocess
import sys

import torch

from . import states


def status_bytes(key):
    text = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"^{key}:\s+(\d+) kB$", text, re.MULTILINE).group(1)) << 10


def measure(kind, size, state_folder, folder):
    """In this process: bytes by metric."""
    loaded = {distance: states.load(size, distance, state_folder) for distance in (0, 1)}
    out = {name: torch.zeros_like(each) for name, each in loaded[0].items()}
    subject = kind(folder / "store")
    native = {distance: subject.native(state) for distance, state in loaded.items()}
    trim()
    before = status_bytes("VmRSS")
    found = {}
    for metric, call in (
        ("memory_full", lambda: subject.save(1, native[0])),
        ("memory_later", lambda: subject.save(2, native[1])),
        ("memory_load", lambda: subject.load(2, out)),
    ):
        trim()
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        call()
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        found[metric] = max(0, status_bytes("VmHWM") - before) + children
    subject.close()
    return found


def trim():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def run(script, kind, size, state_folder, folder):
    """The same in a new process."""
    command = [sys.executable, "-W", "ignore", script, "--memory-of", kind.name, "--size", size.name]
    command += ["--states", state_folder, "--dir", folder]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"memory of {kind.name}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])
