# SPDX-License-Identifier: Apache-2.0
"""What each peer answers to, and what those share that keep a file or a folder a step."""

import importlib
import importlib.metadata
import os
import pathlib
import shutil
import subprocess


class Subject:
    """A store of steps in a folder of its own. A state is a dict of torch tensors on the CPU.

    Subclasses import what they measure in `start`, so that all can be listed where some are not installed.
    """

    name = ""
    distributions = ()  # of PyPI, whose versions are recorded
    programs = ()  # {name: command that prints its version}
    how = ""  # the settings, for the page
    syncs = False  # what `save` wrote is durable when it returns
    is_async = False  # has `begin`, `staged` and `finish`
    shares = True  # steps have something in common, so that a drop could harm another step
    cannot = {}  # by metric: why there is no number, or what the number stands for

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.scratch = memoryview(bytearray(1 << 20))
        self._flushed = {}
        self.start()

    @classmethod
    def missing(cls):
        """The names of what is not installed."""
        found = [each for each in cls.programs if shutil.which(each) is None]
        for each in cls.distributions:
            try:
                importlib.metadata.version(each)
            except importlib.metadata.PackageNotFoundError:
                found.append(each)
        return found

    @classmethod
    def versions(cls):
        found = {each: importlib.metadata.version(each) for each in cls.distributions}
        for program, command in dict(cls.programs).items():
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[program] = " ".join(done.stdout.split()[:2]).removeprefix(f"{program} ")
        return found

    # What a subclass has

    def start(self):
        """Imports, and makes an empty store."""

    def native(self, state):
        """The state as the peer takes it. Called before the clock starts."""
        return state

    def save(self, step, state):
        raise NotImplementedError

    def load(self, step, out):
        """Fills the tensors of `out` and returns it, or a dict of new tensors where it makes only these."""
        raise NotImplementedError

    def load_one(self, step, name, out):
        """The same for one tensor."""
        raise NotImplementedError

    def drop(self, step):
        raise NotImplementedError

    def close(self):
        pass

    # What all share

    def files(self):
        for place, _, names in os.walk(self.folder):
            for name in names:
                yield os.path.join(place, name)

    def bytes_on_disk(self):
        return sum(os.lstat(path).st_blocks * 512 for path in self.files())

    def read_files(self):
        """Reads every file once, so that a load that follows finds them in the system's cache."""
        for path in self.files():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(self.scratch):
                    pass

    def flush(self):
        """Syncs the files that are new or have changed since the last call, and the folders."""
        for path in self.files():
            found = os.stat(path)
            state = (found.st_ino, found.st_size, found.st_mtime_ns)
            if self._flushed.get(path) != state:
                self._flushed[path] = state
                sync(path)
        for place, _, _ in os.walk(self.folder):
            sync(place)


class FilePerStep(Subject):
    """A step is a file or a folder, which nothing else needs."""

    shares = False
    suffix = ""

    def path(self, step):
        return self.folder / f"step_{step}{self.suffix}"

    def drop(self, step):
        path = self.path(step)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_into(out, found):
    """What a trainer does with tensors that a peer has made: load_state_dict copies them."""
    for name, tensor in out.items():
        tensor.copy_(found[name])
    return out
