# SPDX-License-Identifier: Apache-2.0
"""varve repair in real processes: what it prints, its exit codes, and what it leaves."""

import random
import unittest

import harness
import safetensors_bytes as files


class RepairVerbTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        rng = random.Random(19)
        for step in (1, 2):
            source = files.write(
                self.folder / "in.safetensors", {"w": files.random_tensor(rng, "F32", [30_000])}
            )
            harness.varve(self.store, "import", source, "--init", "--step", step)
        harness.varve(self.store, "backup", self.folder / "backup")

    def contents(self, folder):
        return {
            file.relative_to(folder): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file() and file.name != "LOCK"
        }

    def lose_chunks(self):
        max(self.store.rglob("*.sst"), key=lambda file: file.stat().st_size).unlink()

    def test_a_sound_store_stays(self):
        before = self.contents(self.folder)
        done = harness.varve(self.store, "repair", "--yes")
        self.assertEqual(done.stdout, f"{self.store} has no damage; nothing was changed\n")
        report = harness.varve_json(self.store, "repair", "--dry-run")
        self.assertEqual(report["damage"], [])
        self.assertFalse(report["repaired"])
        self.assertEqual(self.contents(self.folder), before)

    def test_without_yes_it_only_says_what_would_be_lost(self):
        self.lose_chunks()
        before = self.contents(self.folder)
        asked = harness.varve(self.store, "repair", expect=harness.USAGE)
        self.assertIn("lost: ", asked.stdout)
        self.assertIn("a repair would keep 1 of 2 steps\n", asked.stdout)
        self.assertIn("add --yes", asked.stderr)
        dry = harness.varve(self.store, "repair", "--dry-run", "--yes", expect=harness.DAMAGED)
        self.assertEqual(dry.stdout, asked.stdout)
        self.assertEqual(self.contents(self.folder), before)

    def test_yes_repairs(self):
        self.lose_chunks()
        before = self.contents(self.store)
        report = harness.varve_json(self.store, "repair", "--yes")
        self.assertTrue(report["repaired"])
        self.assertIn(" is missing", report["damage"][0])
        self.assertEqual(len(report["kept"]), 1)
        self.assertEqual(len(report["lost"]), 1)
        self.assertEqual(report["lost"][0]["tensors"], ["w"])
        damaged = self.folder / "store~damaged"
        self.assertEqual(report["damaged_store"], str(damaged))
        self.assertEqual(self.contents(damaged), before)
        harness.check(self.store)
        kept = report["kept"][0]["step"]
        saved = self.folder / "backup.safetensors"
        found = self.folder / "repaired.safetensors"
        harness.varve(self.folder / "backup", "export", kept, "--output", saved)
        harness.varve(self.store, "export", kept, "--output", found)
        self.assertEqual(found.read_bytes(), saved.read_bytes())

    def test_a_backup_gives_what_is_lost(self):
        self.lose_chunks()
        done = harness.varve(self.store, "repair", "--yes", "--from", self.folder / "backup")
        self.assertIn("from the backup: ", done.stdout)
        self.assertIn("kept 2 of 2 steps", done.stdout)
        self.assertEqual(harness.check(self.store)["steps"], 2)

    def test_what_cannot_be_repaired(self):
        done = harness.varve(self.folder / "none", "repair", expect=harness.NO_STORE)
        self.assertIn("no store in", done.stderr)
        harness.shutil.rmtree(self.store / "spare")
        next((self.store / "db").glob("MANIFEST*")).unlink()
        done = harness.varve(self.store, "repair", "--yes", expect=harness.DAMAGED)
        self.assertIn("take the store from a backup", done.stderr)
        self.assertFalse((self.folder / "store~repair").exists())


if __name__ == "__main__":
    unittest.main()
