# SPDX-License-Identifier: Apache-2.0
"""The help is the manual: docs/cli.md is written from it, and it says what the command does."""

import pathlib
import random
import re
import shutil
import subprocess
import unittest

import harness
import safetensors_bytes as files

ROOT = pathlib.Path(__file__).resolve().parents[3]


def help_of(*arguments):
    return harness.varve("none", "help", *arguments).stdout


def verbs():
    return re.findall(
        r"^  (\w+) +\w", help_of().split("\nOptions:")[0].split("Verbs:")[1], re.MULTILINE
    )


def json_paragraph(verb):
    """What the help of a verb says about its JSON."""
    return re.search(r"^JSON: (.*?)(?:\n\n|\Z)", help_of(verb), re.MULTILINE | re.DOTALL)


class ManualTest(unittest.TestCase):
    def test_the_document_is_what_the_command_says(self):
        document = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
        self.assertEqual(
            document, help_of("--markdown"), "write it again: varve help --markdown > docs/cli.md"
        )

    def test_the_lines_fit_a_terminal(self):
        for line in help_of("--markdown").splitlines()[1:]:
            self.assertLessEqual(len(line), 80, line)

    def test_every_verb_tells_its_json(self):
        for verb in verbs():
            self.assertIsNotNone(json_paragraph(verb), verb)

    def test_the_exit_codes_are_those_of_the_source(self):
        source = (ROOT / "cli/outcome.h").read_text(encoding="utf-8")
        codes = re.findall(r"^  k\w+ = (\d+),$", source, re.MULTILINE)
        self.assertEqual(re.findall(r"^ +(\d+)  ", help_of("exit-codes"), re.MULTILINE), codes)

    @unittest.skipUnless(shutil.which("groff"), "needs groff")
    def test_the_manual_page_is_clean(self):
        page = help_of("--man")
        done = subprocess.run(
            ["groff", "-man", "-ww", "-Tutf8", "-P-cbou"],
            input=page,
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual(done.stderr, "")
        for verb in verbs():
            self.assertRegex(done.stdout, rf"\n   varve {verb}\b")
        self.assertIn("-s, --store PATH", done.stdout)


class JsonKeysTest(unittest.TestCase):
    """Each key that a verb prints is named in its help."""

    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"

    def keys_are_told(self, verb, *arguments):
        value = harness.varve_json(self.store, verb, *arguments)
        told = re.findall(r"\w+", json_paragraph(verb)[1])
        self.assertEqual(isinstance(value, list), told[:2] == ["array", "of"], verb)
        for key in value[0] if isinstance(value, list) else value:
            self.assertIn(key, told, verb)

    def test_keys(self):
        tensors = {"w": files.random_tensor(random.Random(1), "F32", [10])}
        file = files.write(self.folder / "in.safetensors", tensors)
        self.keys_are_told("init")
        self.keys_are_told("import", file, "--step", 1)
        for verb in ("runs", "steps", "stats", "check", "version"):
            self.keys_are_told(verb)
        for verb in ("ls", "show"):
            self.keys_are_told(verb, 1)
        self.keys_are_told("get", 1, "w")
        self.keys_are_told("get", 1, "w", "-o", self.folder / "w.npy")
        self.keys_are_told("export", 1, "-o", self.folder / "out.safetensors")
        self.keys_are_told("drop", 1)
        self.keys_are_told("reclaim")


if __name__ == "__main__":
    unittest.main()
