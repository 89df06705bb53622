# SPDX-License-Identifier: Apache-2.0
"""Any one file of a store or of a group is lost: an answer is whole, or an error that names the file."""

import random
import subprocess
import unittest

import harness
import safetensors_bytes as files

QUESTIONS = (
    ["steps"],
    ["runs"],
    ["stats"],
    ["ls", "1"],
    ["ls", "2"],
    ["get", "1", "w", "--slice", ":9"],
    ["get", "2", "w", "--slice", ":9"],
)


class LostFilesTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        rng = random.Random(13)
        for step in (1, 2):
            source = files.write(
                self.folder / "in.safetensors", {"w": files.random_tensor(rng, "F32", [30_000])}
            )
            harness.varve(self.store, "import", source, "--init", "--step", step)

    def answer(self, question):
        """None: damaged. What the disk holds is not compared: there is a file more or less."""
        done = subprocess.run(
            [harness.program("varve"), "-s", self.store, "--json", *question],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            return None, done
        answer = harness.json.loads(done.stdout)
        if question == ["stats"]:
            answer = {key: answer[key] for key in ("runs", "steps", "chunks", "stored_bytes")}
        return answer, done

    def test_each_table(self):
        whole = [self.answer(question)[0] for question in QUESTIONS]
        self.assertNotIn(None, whole)
        tables = sorted((self.store / "db").glob("*.sst"))
        self.assertGreater(len(tables), 8)
        for table in tables:
            saved = table.with_suffix(".saved")
            table.rename(saved)
            errors = 0
            for question, expected in zip(QUESTIONS, whole, strict=False):
                found, done = self.answer(question)
                if found is None:
                    errors += 1
                    self.assertEqual(done.returncode, harness.DAMAGED, (question, done.stderr))
                    self.assertIn(table.name, done.stderr, question)
                else:
                    self.assertEqual(found, expected, (table.name, question))
            check = harness.varve(self.store, "check", expect=harness.DAMAGED)
            self.assertIn(table.name, check.stdout)
            saved.rename(table)
        harness.check(self.store)


class DamagedTablesTest(unittest.TestCase):
    """Changed bytes in any one table: an answer is whole, or exit code 3 says that it is not."""

    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        rng = random.Random(17)
        tensors = {}
        for step, run in ((1, "a"), (2, "a"), (3, "b")):
            tensors[f"w{step}"] = files.random_tensor(rng, "F32", [30_000])
            source = files.write(self.folder / "in.safetensors", tensors)
            more = ("--run", run, "--metric", f"loss={step}")
            harness.varve(self.store, "import", source, "--init", "--step", step, *more)

    def ask(self, *question):
        done = subprocess.run(
            [harness.program("varve"), "-s", self.store, "--json", *question],
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout and harness.json.loads(done.stdout), done.stderr

    def damage_each_table(self, question):
        """The whole answer, and those that were printed with exit code 3, with what was said."""
        code, whole, _ = self.ask(*question)
        self.assertEqual(code, 0)
        errors, parts = 0, []
        for table in sorted((self.store / "db").glob("*.sst")):
            kept = table.read_bytes()
            table.write_bytes(kept[:8] + bytes(byte ^ 0x55 for byte in kept[8:24]) + kept[24:])
            code, answer, said = self.ask(*question)
            table.write_bytes(kept)
            if code == 0:
                self.assertEqual(answer, whole, (table.name, question))
                continue
            errors += 1
            self.assertEqual(code, harness.DAMAGED, (table.name, said))
            self.assertRegex(said, r"^varve: [^\n]+\n$")
            if answer:
                parts.append((answer, said))
        self.assertGreater(errors, 0)
        return whole, parts

    def test_steps(self):
        whole, parts = self.damage_each_table(["steps", "--sort", "loss"])
        whole = {step["step"]: step for step in whole}
        listed = set()
        for answer, said in parts:
            self.assertIn("the list leaves out what cannot be read: ", said)
            for step in answer:
                expected = whole[step["step"]]
                if step["run"].startswith("#"):  # its name is lost, and so that of its parent
                    step |= {"run": expected["run"], "parent": expected["parent"]}
                self.assertEqual(step, expected, said)
            numbers = {step["step"] for step in answer}
            for step in set(whole) - numbers:
                self.assertIn(f"step {step} of run ", said)
            listed |= numbers
        # Whichever table is lost, the records of other steps are in others.
        self.assertEqual(listed, set(whole))

    def test_dry_run_of_drop(self):
        _, parts = self.damage_each_table(["drop", "a@..2", "--dry-run"])
        for _, said in parts:
            self.assertIn("the bytes leave out", said)

    def test_ls_stored(self):
        whole, parts = self.damage_each_table(["ls", "b@3", "--stored"])
        self.assertTrue(parts)
        for answer, said in parts:
            self.assertIn("the stored bytes leave out", said)
            for expected, tensor in zip(whole, answer, strict=True):
                if tensor["stored_bytes"] is None:
                    self.assertIn(f"tensor {tensor['name']}: ", said)
                    tensor["stored_bytes"] = expected["stored_bytes"]
                self.assertEqual(tensor, expected)


class LostGroupFilesTest(unittest.TestCase):
    QUESTIONS = (
        ["steps"],
        ["runs"],
        ["show", "good"],
        ["ls", "1"],
        ["ls", "4"],
        ["get", "4", "layer 2/gewöhnlich", "--slice", ":9"],
    )

    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.root = self.folder / "root"
        harness.run("group_worker", "save", self.root, 2, 4)
        harness.varve(self.root, "tag", 2, "good")  # the newest record

    def answer(self, question):
        done = subprocess.run(
            [harness.program("varve"), "-s", self.root, "--json", *question],
            capture_output=True,
            text=True,
        )
        return done.stdout if done.returncode == 0 else None, done

    def test_each_file_of_the_root(self):
        whole = [self.answer(question)[0] for question in self.QUESTIONS]
        self.assertNotIn(None, whole)
        of_root = [path for path in self.root.rglob("*") if path.is_file()]
        of_root = sorted(path for path in of_root if "members" not in path.parts)
        newest = max(self.root.glob("log/0*"))
        missed = set()
        for lost in of_root:
            saved = self.folder / "saved"
            lost.rename(saved)
            for question, expected in zip(self.QUESTIONS, whole, strict=True):
                found, done = self.answer(question)
                if found is None:
                    missed.add(lost)
                    code = harness.NO_STORE if lost.name == "GROUP" else harness.DAMAGED
                    self.assertEqual(done.returncode, code, (lost, question, done.stderr))
                else:
                    self.assertEqual(found, expected, (lost, question))
            saved.rename(lost)
        self.assertIn(newest, missed)
        self.assertNotIn(self.root / "log" / "newest", missed)
        harness.check(self.root)

    def test_the_newest_record_is_named(self):
        newest = max(self.root.glob("log/0*"))
        newest.unlink()
        said = harness.varve(self.root, "steps", expect=harness.DAMAGED).stderr
        self.assertIn(f"record {int(newest.name)} of the log is missing", said)
        self.assertIn("newest", said)
        (self.root / "log" / "newest").unlink()  # what the message says to do
        harness.varve(self.root, "steps")


if __name__ == "__main__":
    unittest.main()
