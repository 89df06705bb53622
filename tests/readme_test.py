# SPDX-License-Identifier: Apache-2.0
"""README.md shows C++ that compiles and shell that works.

Its C++ is a part of examples/minimal.cc, which is run. Its shell is run line by line in an empty folder,
with nothing but what a fresh machine has and the command.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ["VARVE_BIN_DIR"])


def blocks(language):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class ReadmeTest(unittest.TestCase):
    def test_cpp_is_part_of_the_example(self):
        (shown,) = blocks("cpp")
        self.assertIn(shown, (ROOT / "examples/minimal.cc").read_text(encoding="utf-8"))

    def test_example_works(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [BIN / "varve_minimal"], cwd=folder, check=True, capture_output=True, text=True
            )
            self.assertEqual(done.stdout, "row 7 begins with 896\n")

    def test_shell_works_line_by_line_in_an_empty_folder(self):
        lines = [line for block in blocks("sh") for line in block.splitlines()]
        self.assertGreaterEqual(len([line for line in lines if line.startswith("varve ")]), 6)
        environment = {key: value for key, value in os.environ.items() if key != "VARVE_STORE"}
        environment["PATH"] = f"{BIN}:{os.environ['PATH']}"
        for shell in ("sh", "bash"):
            with tempfile.TemporaryDirectory() as folder:
                for line in lines:
                    done = subprocess.run(
                        [shell, "-c", line],
                        cwd=folder,
                        env=environment,
                        capture_output=True,
                        text=True,
                        check=False,
                    )
                    self.assertEqual(done.returncode, 0, f"{line}\n{done.stderr}")
                    self.assertEqual(done.stderr, "", line)
                self.assertEqual(np.load(pathlib.Path(folder) / "row.npy").shape, (1, 128))


if __name__ == "__main__":
    sys.exit(unittest.main())
