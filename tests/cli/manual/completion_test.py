# SPDX-License-Identifier: Apache-2.0
"""Completion: bash fills in what it should. zsh and fish, where installed, accept the script."""

import pathlib
import random
import shutil
import subprocess
import unittest

import harness
import safetensors_bytes as files

# Asks the completion function as bash would: the words of the line, the last of them unfinished.
ASK = """
source ./script
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_varve
((${#COMPREPLY[@]})) && printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell):
    return harness.varve("none", "completion", shell).stdout


class BashTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        (self.folder / "script").write_text(script("bash"))

    def complete(self, *words):
        done = subprocess.run(
            ["bash", "-c", ASK, "bash", harness.program("varve"), *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_verbs(self):
        self.assertEqual(self.complete("st"), ["steps", "stats"])
        self.assertEqual(self.complete("-q", "--store", "steps", "sho"), ["show"])
        self.assertEqual(self.complete("help", "exi"), ["exit-codes"])
        self.assertEqual(self.complete("bogus", ""), [])

    def test_options(self):
        self.assertEqual(self.complete("--js"), ["--json"])
        self.assertEqual(self.complete("reclaim", "--a"), ["--all"])
        self.assertEqual(self.complete("ls", "--q"), ["--quiet"])

    def test_values(self):
        self.assertEqual(self.complete("import", "--on-existing", "r"), ["replace"])
        self.assertEqual(
            self.complete("import", "--on-existing", "="), ["error", "replace", "fork"]
        )
        self.assertEqual(self.complete("import", "--run", ""), [])
        self.assertEqual(self.complete("completion", ""), ["bash", "zsh", "fish"])

    def test_files_and_folders(self):
        (self.folder / "in").mkdir()
        (self.folder / "in.safetensors").touch()
        self.assertEqual(
            sorted(self.complete("import", "--step", "1", "in")), ["in", "in.safetensors"]
        )
        self.assertEqual(self.complete("--store", "i"), ["in"])

    def test_steps(self):
        tensors = {"w": files.random_tensor(random.Random(1), "F32", [10])}
        harness.varve(
            self.folder / "a store",
            "import",
            files.write(self.folder / "in", tensors),
            "--init",
            "--step",
            12,
            "--tag",
            "good",
            "--tag",
            "$(touch${IFS}hostile)",
        )
        for store in ("a\\ store", "'a store'"):
            self.assertEqual(self.complete("-s", store, "show", ""), ["latest", "12", "good"])
        self.assertEqual(self.complete("drop", "--store", "=", '"a store"', "12", "g"), ["good"])
        self.assertEqual(self.complete("-s", "gone", "show", ""), [])
        self.assertFalse((self.folder / "hostile").exists())


class OtherShellsTest(unittest.TestCase):
    def check_syntax(self, shell):
        if not shutil.which(shell):
            self.skipTest(f"{shell} is not installed")
        with harness.clean_folder() as folder:
            path = pathlib.Path(folder, "script")
            path.write_text(script(shell))
            done = subprocess.run([shell, "-n", path], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_zsh(self):
        self.check_syntax("zsh")

    def test_fish(self):
        self.check_syntax("fish")
        done = subprocess.run(
            ["fish", "-c", "source; complete -C 'varve -q st'"],
            input=script("fish"),
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines()], ["stats", "steps"])


if __name__ == "__main__":
    unittest.main()
