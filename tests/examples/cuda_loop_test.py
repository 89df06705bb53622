# SPDX-License-Identifier: Apache-2.0
"""examples/cuda_loop*: on a GPU, small. Without one it says so, and touches nothing."""

import subprocess
import sys
import unittest

import harness

NO_GPU = 77


def run(folder, *arguments):
    command = [harness.program("cuda_loop"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


class CudaLoopTest(unittest.TestCase):
    def expect(self, *arguments):
        """Returns what it prints on a GPU. It skips where there is none."""
        with harness.clean_folder() as folder:
            done = run(folder, *arguments)
            self.assertEqual(list(folder.iterdir()), [])
        if done.returncode == NO_GPU:
            self.assertIn("cuda_loop: not run: no GPU here", done.stdout)
            self.skipTest(done.stdout.strip())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_help_names_the_flags(self):
        done = run(None, "--help")
        self.assertEqual(done.returncode, 0, done.stderr)
        for flag in (
            "--gib",
            "--steps",
            "--save-every",
            "--changed",
            "--two-phase",
            "--one-phase",
            "--store",
            "--check",
        ):
            self.assertIn(flag, done.stdout)

    def test_unknown_flags_are_refused(self):
        self.assertNotIn(run(None, "--nonsense").returncode, (0, NO_GPU))

    def test_the_loop_says_what_saves_cost(self):
        printed = self.expect(
            "--gib", "0.05", "--steps", "6", "--save-every", "3", "--changed", "50/40/10"
        )
        self.assertIn("(stall + slowdown) / interval", printed)

    def test_the_contract_holds(self):
        self.assertIn("the contract holds", self.expect("--check", "--rounds", "12"))


if __name__ == "__main__":
    sys.exit(unittest.main())
