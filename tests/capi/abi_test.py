# SPDX-License-Identifier: Apache-2.0
"""The ABI of libvarve_c is that of abi.txt: functions, constants, and places of fields.

Run as `abi_test.py LIBRARY`. The header compiles as C99 without a warning. When the header gets
something new, write the text that this test prints into abi.txt. A line of abi.txt never changes and
never goes, except the size of a struct that gets a field at its end.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "include/varve/c.h"
LIBRARY = pathlib.Path(sys.argv.pop(1))
STRUCT = re.compile(r"^typedef struct (\w+) \{\n(.*?)^\} \1;$", re.M | re.S)
FIELD = re.compile(r"(\w+)(?:\)\([^;]*\))?;")
STRICT = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]


def declarations(text):
    """The header without its comments: functions, constants, and structs with their fields."""
    code = re.sub(r"//.*", "", text)
    functions = re.findall(r"^VARVE_(?:API|CHECKED) [\w\s*]*?(varve_\w+)\(", code, re.M)
    constants = [
        name
        for body in re.findall(r"enum \{(.*?)\}", code, re.S)
        for name in re.findall(r"VARVE_\w+", body)
    ]
    structs = {name: FIELD.findall(body) for name, body in STRUCT.findall(code)}
    return functions, constants, structs


def compile_c(folder, source):
    path = pathlib.Path(folder, "abi.c")
    path.write_text(source)
    program = pathlib.Path(folder, "abi")
    done = subprocess.run(
        ["cc", *STRICT, f"-I{ROOT / 'include'}", path, "-o", program],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def describe(text):
    functions, constants, structs = declarations(text)
    lines = ["#include <stdio.h>", '#include "varve/c.h"', "int main(void) {"]
    lines += [f'  printf("constant {name} %ld\\n", (long){name});' for name in constants]
    for struct, fields in structs.items():
        lines.append(f'  printf("struct {struct} %d\\n", (int)sizeof({struct}));')
        lines += [
            f'  printf("field {struct}.{name} %d\\n", (int)offsetof({struct}, {name}));'
            for name in fields
        ]
    with tempfile.TemporaryDirectory() as folder:
        printed = compile_c(folder, "\n".join([*lines, "  return 0;", "}", ""]))
    return sorted([f"function {name}" for name in functions]) + printed.splitlines()


def symbols(which):
    """The dynamic symbols of the library, without their versions."""
    done = subprocess.run(
        ["nm", "--dynamic", which, LIBRARY], capture_output=True, text=True, check=True
    )
    return [line.split()[-1].split("@")[0] for line in done.stdout.splitlines()]


class AbiTest(unittest.TestCase):
    maxDiff = None

    def test_nothing_has_changed(self):
        found = describe(HEADER.read_text(encoding="utf-8"))
        expected = (ROOT / "tests/capi/abi.txt").read_text(encoding="utf-8").splitlines()
        if found != expected:
            print("\n".join(found))
        self.assertEqual(found, expected)

    def test_the_library_shows_the_functions_and_nothing_else(self):
        shown = symbols("--defined-only")
        functions, _, _ = declarations(HEADER.read_text(encoding="utf-8"))
        self.assertEqual(sorted(shown), sorted(functions))

    def test_no_object_of_a_thread_has_a_destructor(self):
        """The C library ends a process that has no memory to note such a destructor."""
        used = symbols("--undefined-only")
        self.assertIn("__cxa_throw", used)
        self.assertNotIn("__cxa_thread_atexit", used)

    def test_structs_begin_with_their_size(self):
        _, _, structs = declarations(HEADER.read_text(encoding="utf-8"))
        self.assertGreater(len(structs), 10)
        for struct, fields in structs.items():
            if struct != "varve_metric":  # an element of arrays
                self.assertEqual(fields[0], "struct_size", struct)

    def test_it_finds_what_a_header_has(self):
        functions, constants, structs = declarations(
            "VARVE_API const char* varve_a(void);\nVARVE_CHECKED varve_status varve_b(\n    int x);\n"
            "enum {\n  VARVE_X = 0,  // VARVE_NOT\n  VARVE_Y = 7\n};\n"
            "typedef struct varve_s {\n  size_t struct_size;\n  void (*log)(void* c, int l);\n"
            "  const char* const* tags;  // no; field\n} varve_s;\n"
        )
        self.assertEqual(functions, ["varve_a", "varve_b"])
        self.assertEqual(constants, ["VARVE_X", "VARVE_Y"])
        self.assertEqual(structs, {"varve_s": ["struct_size", "log", "tags"]})


if __name__ == "__main__":
    sys.exit(unittest.main())
