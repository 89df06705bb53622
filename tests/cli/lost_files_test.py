# SPDX-License-Identifier: Apache-2.0
"""Any one table file of the database is lost: an answer is whole, or an error that names the file."""

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


if __name__ == "__main__":
    unittest.main()
