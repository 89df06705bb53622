# SPDX-License-Identifier: Apache-2.0
import datetime
import importlib

from .arrays import as_words
from .base import Subject


class Icechunk(Subject):
    name = "zarr + Icechunk"
    distributions = ("icechunk", "zarr")
    how = (
        "an Icechunk repository in a folder, an array of zarr for each tensor with its default chunks and "
        "compression (Zstandard), a commit a step. BF16 as 16-bit words. Each load opens the repository. "
        "Drop: `reset_branch` or `expire_snapshots`, then `garbage_collect`"
    )
    cannot = {
        "drop_first": "drops only the oldest steps, by time, and the newest, and none in the middle"
    }

    def start(self):
        self.icechunk = importlib.import_module("icechunk")
        self.zarr = importlib.import_module("zarr")
        self.buffer = importlib.import_module("zarr.core.buffer.cpu").NDBuffer
        self.repo = self.icechunk.Repository.create(self.storage())
        self.commits = {}

    def storage(self):
        return self.icechunk.local_filesystem_storage(str(self.folder / "repo"))

    def save(self, step, state):
        session = self.repo.writable_session("main")
        group = self.zarr.open_group(session.store, mode="a")
        for name, tensor in state.items():
            words = as_words(tensor)
            if name in group:
                array = group[name]
            else:
                array = group.create_array(name, shape=words.shape, dtype=words.dtype)
            array[...] = words
        commit = session.commit(f"step {step}")
        self.commits[step] = commit
        self.repo.create_tag(f"step-{step}", snapshot_id=commit)

    def load(self, step, out):
        repo = self.icechunk.Repository.open(self.storage())
        session = repo.readonly_session(tag=f"step-{step}")
        group = self.zarr.open_group(session.store, mode="r")
        for name, tensor in out.items():
            group[name].get_basic_selection(out=self.buffer(as_words(tensor)))
        return out

    def load_one(self, step, name, out):
        return self.load(step, {name: out})[name]

    def drop(self, step):
        """The newest step or the oldest one."""
        del self.commits[step]
        self.repo.delete_tag(f"step-{step}")
        if step > max(self.commits):
            self.repo.reset_branch("main", self.commits[max(self.commits)])
        else:
            ancestry = self.repo.ancestry(snapshot_id=self.commits[min(self.commits)])
            self.repo.expire_snapshots(older_than=next(iter(ancestry)).written_at)
        self.repo.garbage_collect(delete_object_older_than=now())


def now():
    return datetime.datetime.now(datetime.timezone.utc)
