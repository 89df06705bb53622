# SPDX-License-Identifier: Apache-2.0
"""The package: its names, its types, and the page about it."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import notebook
import varve
from support import has, require

ROOT = pathlib.Path(__file__).resolve().parents[2]


class PackageTest(unittest.TestCase):
    def test_names_and_docstrings(self):
        for name in varve.__all__:
            self.assertTrue(hasattr(varve, name), name)
        for holder in (varve.Store, varve.Checkpoint, varve.Step, varve.Tensor, varve.safe_open):
            self.assertTrue(holder.__doc__, holder)
        self.assertIn(f'"{varve.__version__}"', (ROOT / "include/varve/version.h").read_text())

    def test_each_name_has_a_home_and_no_other_name_is_there(self):
        named = {*varve._HOMES, *varve._MODULES, "__version__"}
        # "from varve import *" works without them.
        self.assertEqual(named - {"torch", "transformers", "lightning"}, set(varve.__all__))
        with self.assertRaisesRegex(AttributeError, "no attribute 'nothing'"):
            varve.nothing  # noqa: B018
        self.assertLessEqual(set(varve.__all__), set(dir(varve)))

    def test_what_an_import_brings(self):
        code = """
import sys, varve
early = {"numpy", "ml_dtypes", "varve._core"} & set(sys.modules)
for name in varve.__all__:
    getattr(varve, name)
print(sorted(early), sorted({"torch", "jax", "pandas", "tqdm", "rich", "safetensors"} & set(sys.modules)))
"""
        shown = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self.assertEqual(shown.stdout, "[] []\n")

    def test_the_example_goes_on_where_it_was(self):
        with tempfile.TemporaryDirectory() as folder:

            def run(name, steps):
                command = [sys.executable, ROOT / "examples/python/minimal.py", f"{folder}/{name}"]
                return subprocess.run(
                    [*command, str(steps)], stdout=subprocess.PIPE, text=True, check=True
                ).stdout

            whole = run("whole", 12)
            self.assertEqual(whole.count("loss"), 12)
            self.assertEqual(run("stopped", 5) + run("stopped", 12), whole)
            with varve.open(f"{folder}/stopped") as store:
                self.assertTrue(store.check(read_data=True).ok)

    def test_the_stub_is_that_of_the_module(self):
        require("nanobind")
        with tempfile.TemporaryDirectory() as folder:
            made = pathlib.Path(folder) / "_core.pyi"
            subprocess.run(
                [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "varve._core", "-o", made],
                check=True,
            )
            expected = "# SPDX-License-Identifier: Apache-2.0\n" + made.read_text()
        self.assertEqual((ROOT / "python/varve/_core.pyi").read_text(), expected)

    def test_the_reference_is_that_of_the_docstrings(self):
        command = [sys.executable, ROOT / "scripts/python_reference", "--check"]
        checked = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_the_notebook_shows_what_its_cells_do(self):
        path = ROOT / "examples/python/explore.ipynb"
        expected = json.loads(path.read_text(encoding="utf-8"))

        def shown(cells):
            """Kinds of outputs, and the text of those that hold no times."""
            return [
                [(output["output_type"], output.get("text")) for output in cell.get("outputs", ())]
                for cell in cells
            ]

        found = notebook.run(path)
        self.assertEqual(shown(found["cells"]), shown(expected["cells"]))

    def test_the_types(self):
        require("mypy")
        checked = subprocess.run(
            [sys.executable, "-m", "mypy", "--cache-dir", os.devnull],
            cwd=ROOT / "python",
            env={**os.environ, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
        )
        self.assertEqual(checked.returncode, 0, checked.stdout)


class SnippetsTest(unittest.TestCase):
    def test_the_snippet_of_the_readme_runs(self):
        self.run_snippets(ROOT / "README.md", at_least=1)

    def test_each_snippet_of_the_page_runs(self):
        self.run_snippets(ROOT / "docs/python.md", at_least=4)

    def run_snippets(self, page, at_least):
        text = page.read_text(encoding="utf-8")
        snippets = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        self.assertGreaterEqual(len(snippets), at_least)
        here = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            self.addCleanup(os.chdir, here)
            os.chdir(folder)
            names = {"__name__": "page"}
            for match in snippets:
                code = match.group(1)
                if "torch" in code and not has("torch"):
                    continue
                line = text.count("\n", 0, match.start(1))
                exec(compile("\n" * line + code, str(page), "exec"), names)
            with varve.open("ckpt") as store:
                self.assertTrue(store.check(read_data=True).ok)
            os.chdir(here)


if __name__ == "__main__":
    unittest.main()
