# SPDX-License-Identifier: Apache-2.0
"""README.md shows C++ that compiles and shell that works.

Its C++ is a part of examples/minimal.cc, which is run; each line of its shell that calls varve is
run in the store which that example has made.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ["VARVE_BIN_DIR"])


def blocks(language):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class ReadmeTest(unittest.TestCase):
    def test_cpp_is_part_of_the_example(self):
        (shown,) = blocks("cpp")
        self.assertIn(shown, (ROOT / "examples/minimal.cc").read_text(encoding="utf-8"))

    def test_example_and_shell_work(self):
        lines = [line for block in blocks("sh") for line in block.splitlines()
                 if line.startswith("varve ")]
        self.assertGreaterEqual(len(lines), 5)
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([BIN / "varve_minimal"], cwd=folder, check=True,
                                  capture_output=True, text=True)
            self.assertEqual(done.stdout, "row 7 begins with 896\n")
            wte = np.arange(64 * 128, dtype=np.float32).reshape(64, 128)
            save_file({"wte": wte + 1}, pathlib.Path(folder) / "model.safetensors")
            path = {"PATH": f"{BIN}:{os.environ['PATH']}"}
            for line in lines:
                done = subprocess.run(line, shell=True, cwd=folder, env=os.environ | path,
                                      capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, f"{line}\n{done.stderr}")
            np.testing.assert_array_equal(np.load(pathlib.Path(folder) / "row.npy"), wte[7:8] + 1)


if __name__ == "__main__":
    sys.exit(unittest.main())
