# SPDX-License-Identifier: Apache-2.0
import importlib
import json
import os
import shutil
import subprocess

from .base import Subject, copy_into


class Restic(Subject):
    name = "restic on safetensors"
    distributions = ("safetensors",)
    programs = {"restic": ["restic", "version"]}
    how = (
        "`save_file`, then `restic backup` of the file to a repository of version 2 in a folder, with its "
        "default compression. Its cache and that file are not counted. "
        "Load: `restic restore`, `load_file` and a copy. Drop: `forget --prune`"
    )
    syncs = True
    cannot = {"one": "restores the whole file to read one tensor"}

    def start(self):
        self.library = importlib.import_module("safetensors.torch")
        self.repo = self.folder / "repo"
        self.work = self.folder.with_name(self.folder.name + "_work")
        self.work.mkdir()
        self.snapshots = {}
        self.restic("init", "--repository-version", "2")  # version 1 does not compress

    def restic(self, *arguments):
        environment = {
            **os.environ,
            "RESTIC_REPOSITORY": str(self.repo),
            "RESTIC_PASSWORD": "measured",
            "RESTIC_CACHE_DIR": str(self.work / "cache"),
        }
        command = ["restic", "--json", "--quiet", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
        return done.stdout

    def save(self, step, state):
        path = self.work / "state.safetensors"
        self.library.save_file(state, path)
        said = self.restic("backup", "--tag", f"step-{step}", str(path))
        summary = json.loads(said.strip().splitlines()[-1])
        self.snapshots[step] = summary["snapshot_id"]

    def restore(self, step):
        place = self.work / "restored"
        shutil.rmtree(place, ignore_errors=True)
        path = self.work / "state.safetensors"
        self.restic("restore", self.snapshots[step], "--include", str(path), "--target", str(place))
        return place / str(path).lstrip("/")

    def load(self, step, out):
        return copy_into(out, self.library.load_file(self.restore(step)))

    def load_one(self, step, name, out):
        with self.library.safe_open(self.restore(step), "pt") as file:
            return out.copy_(file.get_tensor(name))

    def drop(self, step):
        self.restic("forget", "--prune", self.snapshots.pop(step))

    def close(self):
        shutil.rmtree(self.work)
