# SPDX-License-Identifier: Apache-2.0
"""examples/minimal_loop.cc: its second run goes on where the first has stopped, bit for bit."""

import subprocess
import sys
import unittest

import harness


def train(folder, last):
    command = [harness.program("varve_minimal_loop"), str(last)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)


class MinimalLoopTest(unittest.TestCase):
    def test_second_run_resumes(self):
        with harness.clean_folder() as folder:
            (folder / "whole").mkdir()
            whole = train(folder / "whole", 100)
            self.assertIn("nothing to load from ckpt: starting afresh", whole.stderr)
            self.assertIn("step 100: the last weight is 0x1.", whole.stdout)

            first = train(folder, 65)
            self.assertNotEqual(first.stdout, whole.stdout)
            second = train(folder, 100)
            self.assertIn("loaded step 65 of run main from ckpt", second.stderr)
            self.assertEqual(second.stdout, whole.stdout)
            steps = [entry["step"] for entry in harness.varve_json(folder / "ckpt", "steps")]
            self.assertEqual(steps, [10, 20, 30, 40, 50, 60, 65, 70, 80, 90, 100])
            harness.check(folder / "ckpt")


if __name__ == "__main__":
    sys.exit(unittest.main())
