# SPDX-License-Identifier: Apache-2.0
"""Each test that docs/durability.md names is there. Run as `durability_names_test.py ROOT`.

A name is a suite (`SlotTest`, `SlotTest.*`), one of its tests, a ctest, a source file of tests or its stem.
Or it is a bare name behind its suite or program: "`traps_test`: ChunksHoldNoTombstones, OtherTest.Name".
"""

import pathlib
import re
import sys

from requirements_test import CPP_TEST, names_of

QUOTED = re.compile(r"`([^`]+)`")
# What must be a test wherever it stands.
SUITE_OR_TEST = re.compile(r"\w+Test(\.[\w*]+)?|\w+_test(\.py)?")
# "`owner`: Name, Suite.Name and Name". The names are in no quotes, and are written in camel case.
BARE_NAME = r"[A-Z]\w*[a-z]\w*(?:\.[A-Z]\w+)?"
LISTED = re.compile(rf"`([^`]+)`: ({BARE_NAME}(?:(?:, | and ){BARE_NAME})*)")
MUSTS = "| must | test | mistakes that are planted, and found |"
PITFALLS = "| what varve does | without it | test |"
SENTENCES = "**Tests** of these:"


def names_in(root):
    """Names that stand for themselves, and (suite, test) of each C++ test."""
    names, _ = names_of(root)
    tests = set()
    for path in (root / "tests").rglob("*"):
        if path.suffix not in {".cc", ".h", ".py"} or "golden" in path.parts:
            continue
        names |= {path.stem, str(path.relative_to(root))}
        if path.suffix != ".py":
            tests |= set(CPP_TEST.findall(path.read_text(encoding="utf-8")))
    names |= {f"tests/{path.name}" for path in (root / "tests").iterdir()}
    return names, tests


def cells_of_tests(text):
    """The cells and sentences in which each quoted name is that of a test."""
    table = None
    for line in text.splitlines():
        if not line.startswith("|"):
            table = None
        elif line in (MUSTS, PITFALLS):
            table = line
        elif table is not None and not line.startswith("|---"):
            yield line.split(" | ")[1 if table == MUSTS else -1]
    for at in re.finditer(re.escape(SENTENCES), text):
        yield text[at.start() : text.index("\n\n", at.start())]


def unknown(text, names, tests):
    """What is named and is not there."""
    quoted = {name for name in QUOTED.findall(text) if SUITE_OR_TEST.fullmatch(name)}
    for cell in cells_of_tests(text):
        quoted |= set(QUOTED.findall(cell))
    yield from sorted(quoted - names)
    for owner, listed in LISTED.findall(text):
        for name in re.split(", | and ", listed):
            suite = owner if any(owner == each for each, _ in tests) else None
            if "." in name:
                suite, name = name.split(".")
            elif name in names:
                continue  # a suite
            if not any(name == test and suite in (None, each) for each, test in tests):
                yield f"{name} of {suite or owner}"


def main():
    root = pathlib.Path(sys.argv[1])
    text = (root / "docs/durability.md").read_text(encoding="utf-8")
    names, tests = names_in(root)
    for wrong in (
        "It is `NoSuchTest.Name`.",
        "It is `SlotTest.NoSuchName`.",
        "It is `no_such_test`.",
        "It is `SlotTest`: OthersDoNotCount, NoSuchName.",
        "It is `traps_test`: SlotTest.NoSuchName.",
        "It is `SlotTest`: ChunksHoldNoTombstones.",  # of another suite
        f"{MUSTS}\n|---|---|---|\n| 9 | `no_such_ctest` | `SomeFile` |",
        f"{PITFALLS}\n|---|---|---|\n| what | without | `crash`; `tests/no_such_folder` |",
        f"{SENTENCES} 1: `group_storm`, `no_such_ctest`.\n\n",
    ):
        assert len(list(unknown(wrong, names, tests))) == 1, f"it does not find {wrong}"
    faults = list(unknown(text, names, tests))
    for name in faults:
        print(f"docs/durability.md: there is no {name}")
    num_listed = sum(len(re.split(", | and ", listed)) for _, listed in LISTED.findall(text))
    print(f"{num_listed} bare names, {len(list(cells_of_tests(text)))} cells, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
