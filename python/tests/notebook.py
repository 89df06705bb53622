# SPDX-License-Identifier: Apache-2.0
"""Runs notebooks without Jupyter: a cell is Python, and its last expression is shown as Jupyter would.

python notebook.py --write NOTEBOOK    runs its cells in an empty folder, and puts what they show into it
"""

import ast
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile


def run_cell(source, names, where):
    """What the cell shows: outputs as in the file of a notebook."""
    tree = ast.parse(source, where)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        if last is not None:
            value = eval(compile(last, where, "eval"), names)
    outputs = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        outputs.append({"data": data, "metadata": {}, "output_type": "execute_result"})
    return outputs


def run(path):
    """The notebook with the outputs of a run in a new folder."""
    notebook = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    names = {"__name__": "__main__"}
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            count = 0
            for cell in notebook["cells"]:
                if cell["cell_type"] != "code":
                    continue
                count += 1
                cell["execution_count"] = count
                cell["outputs"] = run_cell("".join(cell["source"]), names, f"{path}, cell {count}")
                for output in cell["outputs"]:
                    if output["output_type"] == "execute_result":
                        output["execution_count"] = count
        finally:
            os.chdir(here)
    return notebook


def main():
    option, path = sys.argv[1:]
    if option != "--write":
        sys.exit(__doc__)
    path = pathlib.Path(path).resolve()
    text = json.dumps(run(path), indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
