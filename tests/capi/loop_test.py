# SPDX-License-Identifier: Apache-2.0
"""examples/c/loop.c: a trainer in C goes on where it has stopped, bit for bit."""

import subprocess
import sys
import unittest

import harness

FLAGS = ["--save", "ckpt", "--save-interval", "10", "--load=ckpt"]


def train(folder, *words, expect=0):
    command = [harness.program("varve_c_loop"), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done


class LoopTest(unittest.TestCase):
    def test_second_run_resumes(self):
        with harness.clean_folder() as folder:
            (folder / "whole").mkdir()
            whole = train(folder / "whole", "100", *FLAGS)
            self.assertIn("step 100: the last weight is 0x1.", whole.stdout)
            self.assertIn(" 3200 samples\n", whole.stdout)

            first = train(folder, *FLAGS, "65")
            self.assertNotEqual(first.stdout, whole.stdout)
            second = train(folder, "100", *FLAGS)
            self.assertIn("loaded step 65 of run main from ckpt", second.stderr)
            self.assertEqual(second.stdout, whole.stdout)
            steps = [entry["step"] for entry in harness.varve_json(folder / "ckpt", "steps")]
            self.assertEqual(steps, [10, 20, 30, 40, 50, 60, 65, 70, 80, 90, 100])
            harness.check(folder / "ckpt")

    def test_errors_are_said(self):
        with harness.clean_folder() as folder:
            self.assertIn("--save-interval", train(folder, expect=2).stderr)
            error = train(folder, "5", "--save", "ckpt", expect=1).stderr
            self.assertIn("invalid argument", error)
            self.assertIn("--save needs --save-interval", error)
            error = train(folder, "5", "--keep-every", expect=1).stderr
            self.assertIn("--keep-every is the last word", error)


if __name__ == "__main__":
    sys.exit(unittest.main())
