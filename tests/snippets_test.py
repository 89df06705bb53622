# SPDX-License-Identifier: Apache-2.0
"""Every C++ snippet of README.md, docs/ and the public headers compiles, and asks before it takes a value.

A snippet of a header is what its comments indent by three spaces. What a snippet takes for granted, such
as a trainer's variables, is in PRELUDE. "..." stands for code that is not shown. Where there is no CUDA,
snippets that need it are compiled with the stand-in for its header in tests/cuda/host_runtime. Snippets of
varve/c.h are compiled as C.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ROOT / "include/varve"

CUDA_STAND_IN = ROOT / "tests/cuda/host_runtime"

# Headers that a snippet may need besides varve's own: the name in the snippet, and what to include.
NEEDS = {
    "varve::Cuda": "varve/cuda.h",
    "varve::Mpi": "varve/mpi_ranks.h",
    "varve::Nccl": "varve/nccl_ranks.h",
}

PRELUDE = """
#include <cstdio>
#include "varve/rados.h"
#include "varve/s3.h"
#include "varve/varve.h"
[[maybe_unused]] static std::unique_ptr<varve::Store> store;
[[maybe_unused]] static std::unique_ptr<varve::CheckpointWriter> writer;
[[maybe_unused]] static std::unique_ptr<varve::AsyncCheckpointer> ckpt;
[[maybe_unused]] static std::unique_ptr<varve::TrainerHooks> hooks;
[[maybe_unused]] static std::unique_ptr<varve::RankGroup> group, ranks_for_saves;
[[maybe_unused]] static varve::CheckpointFlags flags;
[[maybe_unused]] static varve::TrainingState state;
[[maybe_unused]] static varve::TensorView view;
[[maybe_unused]] static std::vector<float> weights, *row;
[[maybe_unused]] static std::span<const std::byte> mine;
[[maybe_unused]] static float *ptr, *wte, *exp_avg;
[[maybe_unused]] static constexpr int64_t V = 1, C = 1, shape[] = {V, C};
[[maybe_unused]] static int64_t last, ep_rank, stage, loader_position;
[[maybe_unused]] static std::vector<std::byte> bytes;
[[maybe_unused]] static uint64_t step;
[[maybe_unused]] static uint32_t rank, num_ranks;
[[maybe_unused]] static int local_rank;
[[maybe_unused]] static const char* path;
template <typename... Args> [[maybe_unused]] static void ForwardAndBackward(Args...) {}
template <typename... Args> [[maybe_unused]] static void OptimizerStep(Args...) {}
[[maybe_unused]] static double ValidationLoss() { return 0; }
"""
C_PRELUDE = """
#include <stdint.h>
#include <stdio.h>
#include "varve/c.h"
static varve_hooks* loop;
static int64_t last;
static void ForwardAndBackward(void) {}
static void OptimizerStep(void) {}
"""
CUDA_PRELUDE = "[[maybe_unused]] static cudaStream_t stream;\n"
NCCL_PRELUDE = "[[maybe_unused]] static varve::SocketRanksOptions options;\n"

# An asterisk before a call: the value of a Result that was not checked for an error.
UNASKED = re.compile(r"(?:^|[=(,!]|return)\s*\*\s*(?:varve::|\w+(?:->|\.))[\w:]*\w+\(")
# The value of a Result of a call that nobody has asked: in `f().value()` and `f()->g()`.
UNASKED_CALL = re.compile(r"(?<!\.value\()\)\s*(?:\.value\(\)|->)")
# A name that holds a Result. What is asked has a line "if (!name.ok())", or is returned.
HELD = re.compile(
    r"^\s*(?:const )?(?:auto|varve::Result<.*>|varve::Status) (\w+) =\s*([^\s(]+)\(", re.M
)
NO_RESULT = {"varve::ShardLayout::Whole", "std::make_shared<varve::OptimizerStep>"}


def dropped_statuses(text):
    """The names in a snippet that hold a Result or a Status which it drops."""
    return [
        name
        for name, call in HELD.findall(text)
        if call not in NO_RESULT and not re.search(rf"!{name}\.ok\(\)|return {name}\b", text)
    ]


def markdown_snippets(path):
    """(first line, text) of each ```cpp block."""
    text = path.read_text(encoding="utf-8")
    for match in re.finditer(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start(1)) + 1, match.group(1)


def header_snippets(path):
    """(first line, text) of what comments indent by three spaces.

    A lone `//` between two such lines belongs to it.
    """
    found, lines = [], path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        match = re.match(r"\s*//(?:   (\s*\S.*)|)$", line)
        if match and match.group(1) is not None:
            if not found or found[-1][0] + len(found[-1][1]) != number:
                found.append((number, []))
            found[-1][1].append(match.group(1))
        elif match and found and found[-1][0] + len(found[-1][1]) == number:
            found[-1][1].append("")
    for first, text in found:
        if any(";" in line for line in text):
            yield first, "\n".join(text).rstrip() + "\n"


def all_snippets():
    for path in [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        ROOT / "examples/README.md",
    ]:
        for first, text in markdown_snippets(path):
            yield path.relative_to(ROOT), first, text
    for path in sorted(HEADERS.glob("*.h")):
        for first, text in header_snippets(path):
            yield path.relative_to(ROOT), first, text


def is_in_an_example(text):
    return any(
        text in path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.cc")
    )


def wrapped_c(place, first, text, number):
    """A function of C around the snippet."""
    return f'void Snippet{number}(void) {{\n#line {first} "{place}"\n{text}}}\n'


def wrapped(place, first, text, number):
    """A function around the snippet, unless it defines one. Errors name the snippet's own place."""
    shown = re.sub(r"^(\s*)\.\.\.", r"\1", text, flags=re.MULTILINE)
    if re.search(r"^(?:void|varve::\S+) \w+\([^;{]*\) \{$", text, flags=re.MULTILINE):
        return f'namespace snippet{number} {{\n#line {first} "{place}"\n{shown}}}\n'
    return (
        f'varve::Status Snippet{number}() {{\n#line {first} "{place}"\n{shown}'
        "  return varve::Status::Ok();\n}\n"
    )


class SnippetsTest(unittest.TestCase):
    compiler = sys.argv[1] if len(sys.argv) > 1 else "c++"
    folders = [ROOT / "include", *(sys.argv[2:] or [CUDA_STAND_IN])]

    def compile(self, source, language="c++", standard="c++20"):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(source)
            file.flush()
            return subprocess.run(
                [
                    self.compiler,
                    f"-std={standard}",
                    "-fsyntax-only",
                    "-Wall",
                    "-Werror=unused-result",
                    *(["-Werror=implicit"] if language == "c" else []),
                    "-Wno-unused",
                    *[f"-I{folder}" for folder in self.folders],
                    "-x",
                    language,
                    file.name,
                ],
                capture_output=True,
                text=True,
                cwd=ROOT,
                env=os.environ | {"LC_ALL": "C"},
            )

    def compile_c(self, source):
        return self.compile(source, "c", "c11")

    def test_all_compile(self):
        groups = {}
        for number, (place, first, text) in enumerate(all_snippets()):
            if is_in_an_example(text) or place.name == "c.h":
                continue  # an example is compiled, and c.h has a test of its own
            needs = next(
                (name for name in NEEDS if name in text or place.name == NEEDS[name][6:]),
                None,
            )
            groups.setdefault(needs, []).append(wrapped(place, first, text, number))
        self.assertGreater(len(groups[None]), 15)
        self.assertEqual(set(groups), {None, *NEEDS})
        self.assertGreater(len(groups["varve::Cuda"]), 1)  # in docs/hooks.md and in cuda.h
        for needs, functions in groups.items():
            with self.subTest(needs=needs):
                header = NEEDS.get(needs)
                source = PRELUDE + (f'#include "{header}"\n' if header else "")
                source += (
                    CUDA_PRELUDE
                    if needs == "varve::Cuda"
                    else NCCL_PRELUDE
                    if needs == "varve::Nccl"
                    else ""
                )
                done = self.compile(source + "\n".join(functions))
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_those_of_c_compile_as_c(self):
        functions = [
            wrapped_c("include/varve/c.h", first, text, number)
            for number, (first, text) in enumerate(header_snippets(HEADERS / "c.h"))
        ]
        self.assertGreaterEqual(len(functions), 3)
        done = self.compile_c(C_PRELUDE + "\n".join(functions))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_no_value_is_taken_unasked(self):
        for place, first, text in all_snippets():
            for number, line in enumerate(text.splitlines()):
                self.assertIsNone(UNASKED.search(line), f"{place}:{first + number}: {line}")
                self.assertIsNone(UNASKED_CALL.search(line), f"{place}:{first + number}: {line}")

    def test_no_status_is_dropped(self):
        for place, first, text in all_snippets():
            self.assertEqual(dropped_statuses(text), [], f"{place}:{first}")

    def test_snippets_of_headers_are_found_word_for_word(self):
        with tempfile.TemporaryDirectory() as folder:
            header = pathlib.Path(folder, "x.h")
            header.write_text(
                "// A header.\n//\n//   hooks->Begin();\n//\n//     Indented(1);\n// Prose; not code.\n"
                "  //   store->No();\n//   a table\n"
            )
            self.assertEqual(
                list(header_snippets(header)),
                [(3, "hooks->Begin();\n\n  Indented(1);\n"), (7, "store->No();\na table\n")],
            )
        for header in (
            "store.h",
            "checkpoint.h",
            "async_checkpointer.h",
            "trainer_hooks.h",
            "step.h",
        ):
            self.assertTrue(list(header_snippets(HEADERS / header)), header)

    def test_all_can_fail(self):
        self.assertNotEqual(
            self.compile(PRELUDE + wrapped("x", 1, "writer->Commit();\n", 0)).returncode, 0
        )
        self.assertNotEqual(
            self.compile(PRELUDE + wrapped("x", 1, "hooks->Begin();\n", 0)).returncode, 0
        )
        for text in ("auto x = 1;\n", "varve_hooks* x = new varve_hooks;\n", "varve_close(1);\n"):
            done = self.compile_c(C_PRELUDE + wrapped_c("x", 1, text, 0))
            self.assertNotEqual(done.returncode, 0, text)
        for line in (
            "auto x = *varve::Store::Open(a);",
            "  if (*hooks->AfterStep(state, true)) break;",
            "f(a, *store.List());",
        ):
            self.assertIsNotNone(UNASKED.search(line), line)
        for line in ("auto x = a * b(c);", "int* p = &store->x();", "Use(*reader, {});"):
            self.assertIsNone(UNASKED.search(line), line)
        for line in ("auto x = Load().value();", "store->Begin(1)->Commit();"):
            self.assertIsNotNone(UNASKED_CALL.search(line), line)
        self.assertIsNone(UNASKED_CALL.search("(void)store->Begin(1);"))
        for text in ("auto x = writer->Commit();\n", "const varve::Status s = f(a);\n"):
            self.assertEqual(len(dropped_statuses(text)), 1, text)
        for text in (
            "auto x = f(a);\nif (!x.ok()) return x.status();\n",
            "auto x = f(a);\nreturn x;\n",
            "const auto all = varve::ShardLayout::Whole({8});\n",
        ):
            self.assertEqual(dropped_statuses(text), [], text)


if __name__ == "__main__":
    sys.exit(unittest.main(argv=sys.argv[:1]))
