# SPDX-License-Identifier: Apache-2.0
"""Sealed stores from the command: --key-file with every verb that writes, check, seal, pull and repair."""

import os
import random
import shutil
import unittest

import harness
import safetensors_bytes as files


class SealVerbsTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        self.key = self.folder / "key"
        self.key.write_bytes(bytes(range(32)))
        self.other = self.folder / "other"
        self.other.write_bytes(bytes(range(1, 33)))
        self.source = self.folder / "in.safetensors"
        rng = random.Random(21)
        files.write(self.source, {"w": files.random_tensor(rng, "F32", [30_000])})
        made = harness.varve(self.store, "init", "--key-file", self.key)
        self.assertEqual(made.stdout, f"made a sealed store in {self.store}\n")
        for step in (1, 2, 3):
            self.keyed("import", self.source, "--step", step)

    def keyed(self, *arguments, **how):
        return harness.varve(self.store, *arguments, "--key-file", self.key, **how)

    def change_largest_table(self):
        table = max(self.store.glob("db/*.sst"), key=lambda file: file.stat().st_size)
        changed = bytearray(table.read_bytes())
        changed[len(changed) // 2] ^= 1
        table.write_bytes(changed)
        return table

    def test_check_compares_files_with_the_seal(self):
        report = harness.varve_json(self.store, "check", "--key-file", self.key)
        self.assertTrue(report["sealed"])
        self.assertEqual(report["sealed_files"], len(list(self.store.glob("db/*.sst"))))
        self.assertIn("table files with the seal\n", self.keyed("check").stdout)
        unkeyed = harness.varve(self.store, "check")
        self.assertIn("no key was given: nobody knows whether it was changed", unkeyed.stderr)
        wrong = harness.varve(self.store, "check", "--key-file", self.other, expect=harness.FAILED)
        self.assertIn("was sealed with the key", wrong.stderr)

    def test_what_was_changed_is_named(self):
        table = self.change_largest_table()
        harness.varve(self.store, "check")  # it looks at structure only
        found = self.keyed("check", expect=harness.DAMAGED)
        self.assertIn(f"{table} does not have its tag", found.stdout)

    def test_verbs_that_write_need_the_key(self):
        for verb in (
            ("import", self.source, "--step", 4),
            ("tag", 1, "first"),
            ("metric", 1, "loss=0.5"),
            ("drop", 2),
            ("forget", "--keep-last", 1),
            ("fork", "main", "other", "--at", 4),
            ("reclaim",),
        ):
            with self.subTest(verb=verb[0]):
                refused = harness.varve(self.store, *verb, expect=harness.FAILED)
                self.assertIn("is sealed, and no key was given", refused.stderr)
                self.keyed(*verb)
        self.assertIn("no errors", self.keyed("check", "--read-data").stdout)

    def test_the_key_may_come_from_the_environment(self):
        environment = os.environ | {"VARVE_KEY_FILE": str(self.key)}
        harness.varve(self.store, "tag", 1, "first", env=environment)

    def test_a_pulled_store_is_sealed_with_the_key(self):
        url = f"file://{self.folder}/remote"
        harness.varve(self.store, "push", url)
        copy = self.folder / "copy"
        harness.varve(copy, "pull", url, "--key-file", self.key)
        harness.varve(copy, "import", self.source, "--step", 4, "--key-file", self.key)
        self.assertIn("with the seal", harness.varve(copy, "check", "--key-file", self.key).stdout)
        later = self.folder / "later"
        harness.varve(later, "pull", url)
        refused = harness.varve(
            later, "tag", 1, "x", "--key-file", self.key, expect=harness.DAMAGED
        )
        self.assertIn("the seal of the store, is missing", refused.stderr)
        sealed = harness.varve(later, "seal", "--key-file", self.key)
        self.assertIn(f"sealed {later}: ", sealed.stdout)
        harness.varve(later, "tag", 1, "x", "--key-file", self.key)

    def test_a_copy_goes_from_a_plain_store_to_a_sealed_one(self):
        plain = self.folder / "plain"
        harness.varve(plain, "import", self.source, "--init", "--step", 9)
        refused = harness.varve(
            plain,
            "import",
            self.source,
            "--step",
            10,
            "--key-file",
            self.key,
            expect=harness.FAILED,
        )
        self.assertIn("is not sealed, and a key was given", refused.stderr)
        sealed = self.folder / "sealed"
        harness.varve(plain, "copy", 9, sealed, "--init", "--key-file", self.key)
        report = harness.varve_json(sealed, "check", "--key-file", self.key)
        self.assertTrue(report["sealed_files"] > 0)

    def test_a_repair_needs_the_key_and_keeps_the_seal(self):
        self.change_largest_table()
        refused = harness.varve(self.store, "repair", "--dry-run", expect=harness.FAILED)
        self.assertIn("no key was given", refused.stderr)
        self.keyed("repair", "--yes")
        report = harness.varve_json(self.store, "check", "--key-file", self.key)
        self.assertTrue(report["sealed"] and report["sealed_files"] > 0)
        shutil.rmtree(f"{self.store}~damaged")

    def test_keys_that_are_none(self):
        short = self.folder / "short"
        short.write_bytes(b"x" * 15)
        refused = harness.varve(self.store, "check", "--key-file", short, expect=harness.USAGE)
        self.assertIn("has 15 bytes, expected 16 to 1024", refused.stderr)
        harness.varve(self.store, "seal", expect=harness.USAGE)


if __name__ == "__main__":
    unittest.main()
