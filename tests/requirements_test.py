# SPDX-License-Identifier: Apache-2.0
"""Every test that docs/requirements.md names is there. Run as `requirements_test.py ROOT`."""

import pathlib
import re
import sys

CPP_TEST = re.compile(r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\s*\)")
CTEST = re.compile(r"varve_add(?:_python)?_test\(\s*(\w+)")
METHOD = re.compile(r"def (test_\w+)\(")
LABEL = re.compile(r"^row\d+$")


def names_of(root):
    """The names by which a row may call a test: Suite.Name, Suite.*, a ctest, a method, a script."""
    names = set()
    for path in [*(root / "tests").rglob("*"), *(root / "python/tests").rglob("*.py")]:
        if path.suffix not in {".cc", ".h", ".py", ".txt"} or "golden" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        for suite, name in CPP_TEST.findall(text):
            names |= {f"{suite}.{name}", f"{suite}.*", suite}
        names |= set(CTEST.findall(text)) | set(METHOD.findall(text))
    names |= {f"scripts/{path.name}" for path in (root / "scripts").iterdir()}
    return names


def unknown(text, names):
    """(row, name) of what the table's last column names and is not there."""
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) < 6 or not cells[1].strip().isdigit():
            continue
        for name in re.findall(r"`([^`]+)`", cells[-2]):
            pattern = re.compile(re.escape(name).replace(r"\*", r".*"))
            called = name.endswith("_bench") or LABEL.match(name) or name in {"export", "BeginSave"}
            if not called and not any(pattern.fullmatch(known) for known in names):
                yield cells[1].strip(), name


def main():
    root = pathlib.Path(sys.argv[1])
    text = (root / "docs/requirements.md").read_text(encoding="utf-8")
    names = names_of(root)
    assert list(unknown("| 1 | what | done | `NoSuchTest.Name` |", names)), "it finds nothing"
    faults = list(unknown(text, names))
    for row, name in faults:
        print(f"docs/requirements.md: row {row}: there is no test {name}")
    print(f"{len(names)} names of tests, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
