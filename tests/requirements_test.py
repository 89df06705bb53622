# SPDX-License-Identifier: Apache-2.0
"""All that the last column of docs/requirements.md names is there. Run as `requirements_test.py ROOT`.

A name is that of a test, a benchmark, a script or a verb. A label rowNN is one that the tests before it have.
"""

import pathlib
import re
import sys

CPP_TEST = re.compile(r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\s*\)")
CTEST = re.compile(r"varve_add(?:_python)?_test\(\s*(\w+)([^)]*)\)")
BENCHMARK = re.compile(r"add_executable\(\s*(\w+_bench)\s")
METHOD = re.compile(r"def (test_\w+)\(")
LABEL = re.compile(r"row\d+")
# Names with their label: "`a` (label `row01`)", and "`a` and `b` (label `row01`)", where both have it.
LABELLED = re.compile(r"((?:`[^`]+` and )?`[^`]+`) \(label `([^`]+)`")


def names_of(root):
    """The names that a row may use, and the labels of each ctest.

    Names are Suite.Name, Suite.*, a ctest, a method, a benchmark, scripts/NAME, and `varve VERB`.
    """
    names, labels = set(), {}
    for path in [*(root / "tests").rglob("*"), *(root / "python/tests").rglob("*.py")]:
        if path.suffix not in {".cc", ".h", ".py", ".txt"} or "golden" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        for suite, name in CPP_TEST.findall(text):
            names |= {f"{suite}.{name}", f"{suite}.*", suite}
        for name, rest in CTEST.findall(text):
            labels[name] = set(LABEL.findall(rest))
        names |= set(METHOD.findall(text))
    names |= set(labels)
    names |= set(BENCHMARK.findall((root / "bench/CMakeLists.txt").read_text(encoding="utf-8")))
    names |= {f"scripts/{path.name}" for path in (root / "scripts").iterdir()}
    names |= {f"varve {path.stem[4:]}" for path in (root / "cli/verbs").glob("cmd_*.cc")}
    return names, labels


def unknown(text, names, labels):
    """(row, name) of what the table's last column names and is not there."""
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) < 6 or not cells[1].strip().isdigit():
            continue
        row, cell, has_label = cells[1].strip(), cells[-2], set()
        for tests, label in LABELLED.findall(cell):
            has_label.add(label)
            for test in re.findall(r"`([^`]+)`", tests):
                if label not in labels.get(test, set()):
                    yield row, f"{test} with the label {label}"
        for name in re.findall(r"`([^`]+)`", cell):
            pattern = re.compile(re.escape(name).replace(r"\*", r".*"))
            if name not in has_label and not any(pattern.fullmatch(known) for known in names):
                yield row, name


def main():
    root = pathlib.Path(sys.argv[1])
    text = (root / "docs/requirements.md").read_text(encoding="utf-8")
    names, labels = names_of(root)
    for wrong in (
        "`NoSuchTest.Name`",
        "`crash` (label `row01`)",
        "`row31`",
        "`no_bench`",
        "`export`",
    ):
        line = f"| 1 | what | done | {wrong} |"
        assert len(list(unknown(line, names, labels))) == 1, f"it does not find {wrong}"
    faults = list(unknown(text, names, labels))
    for row, name in faults:
        print(f"docs/requirements.md: row {row}: there is no {name}")
    print(f"{len(names)} names, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
