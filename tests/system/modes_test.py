# SPDX-License-Identifier: Apache-2.0
"""Modes of the files and folders that varve makes: those of the umask, and a private folder stays so."""

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import unittest

import harness
import store_verbs

MOST_REPAIRS = 20  # until one is seen at work


def modes(folder):
    """{relative path: mode} of a folder and all that it holds."""
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in [folder, *folder.rglob("*")]
    }


class ModesTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"

    def varve(self, store, *arguments, umask, **options):
        return harness.varve(store, *arguments, umask=umask, **options)

    def make(self, umask):
        """A store with all files that there are: of saves, requests, seals and spare copies."""
        before = os.umask(umask)
        try:
            template = store_verbs.Template(self.folder / "made")
            tool = harness.StoreTool(self.store, store_verbs.PLAN)
            with tool:
                tool.must("save 1 1")
                tool.must("save 2 2")
                harness.varve(self.store, "metric", 1, "loss=1")  # makes inbox/
        finally:
            os.umask(before)
        return template

    def expect(self, folder, umask):
        """The umask of the process decides, and nothing is executable or writable beyond it."""
        for path, mode in modes(folder).items():
            is_folder = (folder / path).is_dir()
            allowed = (0o777 if is_folder else 0o666) & ~umask
            self.assertEqual(mode & ~allowed, 0, f"{path} of {folder} has mode {mode:o}")
            if umask == 0o022:
                self.assertTrue(mode & 0o044, f"others cannot read {path}: {mode:o}")

    def test_what_is_made_follows_the_umask(self):
        for umask in (0o022, 0o077):
            with self.subTest(f"{umask:o}"):
                shutil.rmtree(self.folder / "made", ignore_errors=True)
                shutil.rmtree(self.store, ignore_errors=True)
                template = self.make(umask)
                self.expect(self.store, umask)
                self.expect(self.folder / "made", umask)  # pulled, remote, sealed, damaged
                for number, verb in enumerate(store_verbs.verbs()):
                    run = store_verbs.Run(template, verb, self.folder / f"{umask:o} {number}")
                    os.chmod(run.dest, 0o777 & ~umask)
                    subprocess.run(
                        run.command,
                        check=True,
                        env=run.environment,
                        umask=umask,
                        stdout=subprocess.DEVNULL,
                    )
                    for folder in (run.store, run.dest, *run.folder.glob("store~*")):
                        self.expect(folder, umask)
                    shutil.rmtree(run.folder)

    def test_a_group_follows_the_umask(self):
        for umask in (0o022, 0o077):
            with self.subTest(f"{umask:o}"):
                root = self.folder / f"root {umask:o}"
                harness.run("group_worker", "save", root, 2, 3, umask=umask)
                self.varve(root, "tag", 2, "good", umask=umask)
                self.varve(root, "drop", 1, umask=umask)
                made = modes(root)
                for name in ("GROUP", "log/newest", "catalogues/2"):
                    self.assertIn(name, made)
                self.assertEqual(len([name for name in made if name.endswith("/FORMAT")]), 4)
                self.expect(root, umask)

    def private(self, folder):
        self.assertEqual(modes(folder)["."], 0o700, folder)

    def test_a_private_folder_stays_private(self):
        template = self.make(0o022)
        for verb in store_verbs.verbs():
            run = store_verbs.Run(template, verb, self.folder / f"private {verb.name}")
            if not verb.start:
                run.store.mkdir()
            run.store.chmod(0o700)
            word = verb.arguments[0]
            destination = run.dest / {"push": "remote"}.get(word, word)
            if verb.makes in ("store", "remote"):
                destination.mkdir(0o700)
            subprocess.run(
                run.command,
                check=True,
                env=run.environment,
                umask=0o022,
                stdout=subprocess.DEVNULL,
            )
            self.private(run.store)
            if verb.start == "damaged":
                self.private(run.folder / "store~damaged")
            if verb.makes in ("store", "remote"):
                self.private(destination)

    def test_while_a_repair_works_nobody_else_can_look(self):
        """PATH~repair holds what the private store holds."""
        template = self.make(0o022)
        verb = next(verb for verb in store_verbs.verbs() if verb.name == "repair")
        seen = set()
        for attempt in range(MOST_REPAIRS):
            run = store_verbs.Run(template, verb, self.folder / f"repair{attempt}")
            process = subprocess.Popen(run.command, umask=0o022, stdout=subprocess.DEVNULL)
            while process.poll() is None:
                with contextlib.suppress(FileNotFoundError):
                    seen.add(stat.S_IMODE((run.folder / "store~repair").lstat().st_mode))
            self.assertEqual(process.returncode, 0)
            if seen:
                break
        self.assertEqual(seen, {0o700}, [f"{mode:o}" for mode in seen])


if __name__ == "__main__":
    sys.exit(unittest.main())
