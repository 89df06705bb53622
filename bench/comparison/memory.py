# SPDX-License-Identifier: Apache-2.0
"""The most memory that a save and a load take, above that of the state. Each subject has its own process."""

import ctypes
import gc
import json
import pathlib
import re
import subprocess
import sys
import threading

import torch

from . import states


def status_bytes(key, process="self"):
    text = pathlib.Path(f"/proc/{process}/status").read_text()
    return int(re.search(rf"^{key}:\s+(\d+) kB$", text, re.MULTILINE).group(1)) << 10


class Children:
    """Looks, while a block runs, how much the programs take that a subject has started."""

    def __enter__(self):
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _look(self):
        own = pathlib.Path("/proc/self/exe").resolve()
        while not self._over.wait(0.005):
            for tasks in pathlib.Path("/proc/self/task").glob("*/children"):
                for child in tasks.read_text().split():
                    try:
                        # Until its exec a child shares the memory of this process.
                        if pathlib.Path(f"/proc/{child}/exe").resolve() != own:
                            self.most = max(self.most, status_bytes("VmHWM", child))
                    except (OSError, AttributeError):
                        pass  # it has ended


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
        with Children() as children:
            call()
        found[metric] = max(0, status_bytes("VmHWM") - before) + children.most
    subject.close()
    return found


def trim():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def run(script, kind, size, state_folder, folder):
    """The same in a new process."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        script,
        "--memory-of",
        kind.name,
        "--size",
        size.name,
    ]
    command += ["--states", state_folder, "--dir", folder]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"memory of {kind.name}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])
