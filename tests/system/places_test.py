# SPDX-License-Identifier: Apache-2.0
"""Stores in odd places: locked, read-only, moved, deleted, made by a newer varve, or no store at all."""

import os
import shutil
import unittest

import harness
import numpy
from safetensors.numpy import save_file


def snapshot(folder):
    """Names and contents of all files, to show that nothing was changed."""
    return {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


class PlacesTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        self.file = self.folder / "one.safetensors"
        save_file({"w": numpy.arange(1000, dtype=numpy.float32)}, self.file)

    def make_store(self):
        with harness.StoreTool(self.store) as tool:
            for step in range(3):
                tool.must(f"save {step} {step}")

    def assert_readable(self):
        """Every reading verb works, whatever else holds or forbids the store."""
        self.assertEqual(
            [step["step"] for step in harness.varve_json(self.store, "steps")], [0, 1, 2]
        )
        name = harness.varve_json(self.store, "ls", "latest")[0]["name"]
        harness.varve(self.store, "show", "latest")
        harness.varve(self.store, "get", "1", name)
        harness.varve(self.store, "stats")
        out = self.folder / "out.safetensors"
        harness.varve(self.store, "export", "2", "-o", out)
        out.unlink()
        harness.check(self.store)

    def test_second_writer_is_told_that_the_store_is_locked(self):
        self.make_store()
        with harness.StoreTool(self.store) as first:
            self.assertEqual(first.opened, "ok")
            with harness.StoreTool(self.store) as second:
                self.assertTrue(second.opened.startswith("locked"), second.opened)
                self.assertIn(str(self.store), second.opened)
            for verb in (["import", self.file, "--step", "9"], ["reclaim"]):
                done = harness.varve(self.store, *verb, expect=harness.LOCKED)
                self.assertIn("locked", done.stderr)
            self.assert_readable()
            first.must("verify 2")
        harness.varve(self.store, "import", self.file, "--step", "9")
        harness.check(self.store)

    def assert_refuses_to_write(self):
        before = snapshot(self.store)
        for verb in (["import", self.file, "--step", "9"], ["drop", "1"], ["reclaim"]):
            done = harness.varve(self.store, *verb, expect=harness.FAILED)
            self.assertIn("Read-only file system", done.stderr)
            self.assertIn(str(self.store), done.stderr)
        self.assertEqual(snapshot(self.store), before)

    def test_read_only_mount_can_be_read(self):
        self.make_store()
        try:
            self.enterContext(harness.mounted(self.store, "--bind", str(self.store)))
            self.enterContext(harness.mounted(self.store, "-o", "bind,ro", str(self.store)))
        except PermissionError as error:
            self.skipTest(str(error))
        self.assert_readable()
        self.assert_refuses_to_write()

    def test_read_only_folder_can_be_read(self):
        """As a user without rights: root may write to any folder."""
        self.make_store()
        nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        self.folder.chmod(0o755)
        for path in [self.store, *self.store.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            harness.varve(self.store, "version", **nobody)
        except PermissionError:
            self.skipTest("another user may not run the programs of this build")
        steps = harness.varve_json(self.store, "steps", **nobody)
        self.assertEqual(len(steps), 3)
        self.assertTrue(harness.varve_json(self.store, "check", "--read-data", **nobody)["ok"])
        before = snapshot(self.store)
        done = harness.varve(self.store, "drop", "1", expect=harness.FAILED, **nobody)
        self.assertIn("Permission denied", done.stderr)
        self.assertEqual(snapshot(self.store), before)
        for path in [self.store, *self.store.rglob("*")]:
            path.chmod(0o755)

    def test_moved_store_can_be_read_and_written(self):
        self.make_store()
        elsewhere = self.folder / "else where"
        elsewhere.mkdir()
        self.store = self.store.rename(elsewhere / "other name")
        self.assert_readable()
        with harness.StoreTool(self.store) as tool:
            for step in range(3):
                tool.must(f"verify {step}")
            tool.must("save 3 3")
            tool.must("drop 0")
        harness.check(self.store)

    def test_copied_store_is_a_store(self):
        self.make_store()
        copy = self.folder / "copy"
        shutil.copytree(self.store, copy)
        shutil.rmtree(self.store)
        self.store = copy
        self.assert_readable()

    def test_no_store_is_said_so(self):
        (self.folder / "empty").mkdir()
        for place in ("nowhere", "empty"):
            for verb in (["steps"], ["get", "1", "w"], ["drop", "1"], ["check"], ["stats"]):
                done = harness.varve(self.folder / place, *verb, expect=harness.NO_STORE)
                self.assertIn(place, done.stderr)
        self.assertFalse((self.folder / "nowhere").exists())
        self.assertEqual(list((self.folder / "empty").iterdir()), [])

    def test_foreign_folder_is_left_alone(self):
        foreign = self.folder / "thesis"
        foreign.mkdir()
        (foreign / "chapter1.txt").write_text("years of work")
        before = snapshot(foreign)
        for verb in (["init"], ["import", self.file, "--init", "--step", "1"]):
            done = harness.varve(foreign, *verb, expect=harness.FAILED)
            self.assertIn(str(foreign), done.stderr)
        harness.varve(foreign, "steps", expect=harness.NO_STORE)
        self.assertEqual(snapshot(foreign), before)

    def test_file_in_place_of_a_store_is_left_alone(self):
        before = self.file.read_bytes()
        harness.varve(self.file, "init", expect=harness.FAILED)
        harness.varve(
            self.file, "import", self.file, "--init", "--step", "1", expect=harness.FAILED
        )
        harness.varve(self.file, "steps", expect=harness.NO_STORE)
        self.assertEqual(self.file.read_bytes(), before)

    def test_damaged_format_file_is_named(self):
        self.make_store()
        path = self.store / "FORMAT"
        good = path.read_bytes()
        for what, bad in (
            ("flipped", bytes([good[0] ^ 1]) + good[1:]),
            ("cut", good[:-1]),
            ("empty", b""),
        ):
            with self.subTest(what):
                path.write_bytes(bad)
                done = harness.varve(self.store, "check", expect=harness.DAMAGED)
                self.assertIn("FORMAT", done.stderr + done.stdout)
        path.write_bytes(good)
        self.assert_readable()

    def test_deleted_under_an_open_writer_is_an_error(self):
        self.make_store()
        with harness.StoreTool(self.store) as tool:
            shutil.rmtree(self.store)
            answer = tool.say("save 9 9")
            self.assertFalse(answer.startswith("ok"), answer)
        harness.varve(self.store, "steps", expect=harness.NO_STORE)


if __name__ == "__main__":
    unittest.main()
