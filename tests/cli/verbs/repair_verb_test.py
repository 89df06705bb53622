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

    def test_a_snapshot_gives_what_is_lost(self):
        url = f"file://{self.folder}/remote"
        harness.varve(self.store, "push", url)
        self.lose_chunks()
        before = self.contents(self.store)
        dry = harness.varve_json(
            self.store, "repair", "--from", url, "--dry-run", expect=harness.DAMAGED
        )
        self.assertEqual(dry["lost"], [])
        done = harness.varve(self.store, "repair", "--yes", "--from", url)
        self.assertIn("from the backup: ", done.stdout)
        self.assertIn("kept 2 of 2 steps", done.stdout)
        self.assertEqual(harness.check(self.store)["steps"], 2)
        self.assertEqual(self.contents(self.folder / "store~damaged"), before)

    def test_what_is_no_snapshot_of_the_store_is_refused(self):
        other = self.folder / "other"
        harness.varve(other, "init")
        harness.varve(other, "push", f"file://{self.folder}/remote")
        self.lose_chunks()
        before = self.contents(self.folder)
        for place, code, text in (
            ("remote", harness.FAILED, "is no backup of"),
            ("nothing", harness.NO_STORE, "nothing"),
        ):
            url = f"file://{self.folder}/{place}"
            done = harness.varve(self.store, "repair", "--yes", "--from", url, expect=code)
            self.assertIn(text, done.stderr)
        self.assertEqual(self.contents(self.folder), before)

    def save_in_parts(self):
        """Step 4 has "same" of step 3 and a tensor of its own, which is lost. Returns the first file."""
        rng = random.Random(4)
        same = files.random_tensor(rng, "F32", [30_000])
        for step in (3, 4):
            tensors = {"same": same, "own": files.random_tensor(rng, "F32", [40_000])}
            source = files.write(self.folder / f"in{step}.safetensors", tensors)
            harness.varve(self.store, "import", source, "--step", step)
        self.lose_chunks_of_own()
        return same

    def lose_chunks_of_own(self):
        large = [file for file in self.store.rglob("*.sst") if file.stat().st_size > 100_000]
        max(large).unlink()

    def test_a_lost_step_is_kept_in_part(self):
        same = self.save_in_parts()
        before = self.contents(self.folder)
        asked = harness.varve(self.store, "repair", "--dry-run", expect=harness.DAMAGED)
        self.assertIn(
            "hint: some tensors of 1 lost step can be read. --keep-partial ", asked.stdout
        )
        options = ("repair", "--keep-partial")
        dry = harness.varve(self.store, *options, "--dry-run", expect=harness.DAMAGED)
        self.assertNotIn("hint: ", dry.stdout)
        self.assertIn("lost: 4: ", dry.stdout)
        self.assertIn("kept in part: 4 as main~damaged@4: 1 tensor: same\n", dry.stdout)
        self.assertIn("lost in part: main~damaged@4: 1 tensor: own\n", dry.stdout)
        self.assertIn("a repair would keep 3 of 4 steps, and 1 in part\n", dry.stdout)
        said = harness.varve_json(self.store, *options, "--dry-run", expect=harness.DAMAGED)
        self.assertEqual(self.contents(self.folder), before)
        report = harness.varve_json(self.store, *options, "--yes")
        self.assertEqual(report["partial"], said["partial"])
        self.assertEqual(
            report["partial"],
            [
                {
                    "run": "main",
                    "step": 4,
                    "kept_in": "main~damaged",
                    "kept_tensors": ["same"],
                    "lost_tensors": ["own"],
                    "other_losses": [],
                    "from_backup": False,
                    "doubts": [],
                }
            ],
        )
        self.assertEqual(harness.check(self.store)["steps"], 4)
        harness.varve(self.store, "show", 4, expect=harness.NO_STEP)
        out = self.folder / "part.safetensors"
        harness.varve(self.store, "export", "main~damaged@4", "--output", out)
        self.assertEqual(files.read(out), {"same": same})
        source = self.folder / "in3.safetensors"
        harness.varve(self.store, "import", source, "--step", 4)

    def test_after_a_repair_the_hint_names_the_damaged_store(self):
        self.save_in_parts()
        done = harness.varve(self.store, "repair", "--yes")
        self.assertIn(f"varve -s {self.folder}/store~damaged repair --keep-partial", done.stdout)
        damaged = self.folder / "store~damaged"
        report = harness.varve_json(damaged, "repair", "--keep-partial", "--yes")
        self.assertEqual(report["partial"][0]["kept_tensors"], ["same"])
        self.assertEqual(harness.check(damaged)["steps"], 4)

    def test_the_hint_after_a_repair_of_a_sealed_store_names_the_key(self):
        key = self.folder / "key"
        key.write_bytes(bytes(range(32)))
        self.store = self.folder / "sealed"
        same = files.random_tensor(random.Random(4), "F32", [30_000])
        for step in (3, 4):
            tensors = {
                "same": same,
                "own": files.random_tensor(random.Random(step), "F32", [40_000]),
            }
            source = files.write(self.folder / "in.safetensors", tensors)
            options = ("--init", "--key-file", key, "--step", step)
            harness.varve(self.store, "import", source, *options)
        self.lose_chunks_of_own()
        done = harness.varve(self.store, "repair", "--yes", "--key-file", key)
        hint = f"varve -s {self.folder}/sealed~damaged --key-file {key} repair --keep-partial --yes"
        self.assertIn(hint, done.stdout)
        damaged = self.folder / "sealed~damaged"
        harness.varve(damaged, "--key-file", key, "repair", "--keep-partial", "--yes")

    def test_a_full_disk_gets_the_advice_of_a_repair(self):
        disk = self.folder / "disk"
        disk.mkdir()
        try:
            self.enterContext(harness.mounted(disk, "-t", "tmpfs", "-o", "size=1m", "tmpfs"))
        except PermissionError as error:
            self.skipTest(f"a small file system cannot be mounted here: {error}")
        store = disk / "store"
        harness.shutil.copytree(
            self.store, store, ignore=harness.shutil.ignore_patterns("RESERVE", "incoming")
        )
        with open(max(store.rglob("*.sst"), key=lambda file: file.stat().st_size), "ab") as file:
            file.write(b"x")
        before = self.contents(store)
        harness.fill_disk(disk)
        done = harness.varve(store, "repair", "--yes", expect=harness.FAILED)
        self.assertIn("No space left", done.stderr)
        self.assertIn("the store stays as it was. A repair needs room for another", done.stderr)
        self.assertNotIn("varve drop", done.stderr)
        self.assertEqual(self.contents(store), before)

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
