# SPDX-License-Identifier: Apache-2.0
"""Shows that layering_test.py finds each kind of fault, and only those, in made trees."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import layering_test


def faults_of(path, *includes):
    """The faults of a tree whose only file is `path` with these include lines."""
    return faults_of_text(path, "".join(f"#include {include}\n" for include in includes))


def faults_of_text(path, text, public=""):
    """The faults of a tree with a file `path`, and a public header if there is a text for it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in ((path, text), ("include/varve/a.h", public)):
            if content:
                file = pathlib.Path(folder, name)
                file.parent.mkdir(parents=True)
                file.write_text(content)
        rooms, faults = layering_test.check(pathlib.Path(folder))
        assert sum(rooms.values()) == 1 + bool(public)
        return faults


class LayeringTest(unittest.TestCase):
    BAD = [
        ("codec/frame.cc", '"store/format/keys.h"', "goes up"),
        ("codec/frame.cc", "<thread>", "only for"),
        ("codec/frame.cc", "<zstd.h>", "only for codec/entropy/zstd*.cc"),
        ("codec/frame.cc", "<rocksdb/db.h>", "only for store/*"),
        ("store/save/save.cc", '"cli/main.h"', "goes up"),
        ("store/save/save.cc", '"cuda/digest.h"', "goes up"),
        ("store/save/save.cc", '"trainer_hooks/async.h"', "goes up"),
        ("store/save/save.cc", "<cuda_runtime.h>", "only for cuda/*"),
        ("store/save/save.cc", "<nccl.h>", "only for cuda/*"),
        ("store/save/save.cc", "<mpi.h>", "only for trainer_hooks/ranks/*"),
        ("cuda/digest.cc", '"store/format/keys.h"', "goes up"),
        ("cli/main.cc", '"tests/support/x.h"', "goes up"),
        ("cli/main.cc", '"rocksdb/db.h"', "only for store/*"),
        ("examples/gpt/main.cc", '"store/format/keys.h"', "goes up"),
        ("include/varve/store.h", "<rocksdb/db.h>", "only for store/*"),
        ("include/varve/store.h", '"flatbuffers/flatbuffers.h"', "only for store/*"),
        ("include/varve/store.h", '"store/schema/steps_generated.h"', "goes up"),
        ("cli/main.cc", '"store/schema/steps_generated.h"', "only for store/*"),
        ("cli/main.cc", "<cuda/std/span>", "only for cuda/*"),
        ("include/varve/store.h", "<zstd.h>", "only for codec/entropy/zstd*.cc"),
        ("include/varve/store.h", "<nccl.h>", "only for cuda/*"),
        ("include/varve/store.h", "<cuda_runtime.h>", "only for cuda/*"),
        ("include/varve/store.h", '"codec/frame.h"', "goes up"),
        ("base/files.cc", '"codec/frame.h"', "goes up: base may include"),
        (
            "codec/planes/split.cc",
            '"codec/entropy/huffman_code.h"',
            "goes up: codec/entropy lies above",
        ),
        ("codec/entropy/huffman_code.cc", '"codec/plan.h"', "goes up: codec lies above"),
        ("store/shards/overlap.cc", '"store/format/keys.h"', "goes up: store/format lies above"),
        ("store/shards/overlap.cc", "<mutex>", "only for !store/shards/*"),
        ("store/read/reader.cc", '"store/save/pipeline.h"', "goes up: store/save lies above"),
        ("store/db/store.cc", '"store/group/group_store.h"', "goes up: store/group lies above"),
        (
            "trainer_hooks/state/x.cc",
            '"trainer_hooks/save/x.h"',
            "goes up: trainer_hooks/save lies",
        ),
        (
            "trainer_hooks/group/x.cc",
            '"trainer_hooks/stop_signal.h"',
            "goes up: trainer_hooks lies",
        ),
        ("cli/print.cc", '"cli/verbs/show.h"', "goes up: cli/verbs lies above cli"),
        ("cli/verbs/show.cc", '"cli/main.cc"', "goes up: cli/main.cc lies above"),
        ("cuda/digest.cc", '"trainer_hooks/x.h"', "goes up"),
        ("include/varve/store.h", '"varve/load.h"', "is of the hooks"),
        ("store/open.cc", '"varve/hooks.h"', "is of the hooks"),
        ("capi/hooks.cc", '"store/format/keys.h"', "goes up: capi may include"),
        ("capi/hooks.cc", '"base/util.h"', "goes up: capi may include"),
        ("trainer_hooks/flags.cc", '"capi/handles.h"', "goes up"),
        # The borders of libraries that the cases above do not name.
        ("cli/print.cc", "<xxhash.h>", "only for base/* codec/* cuda/*"),
        ("cuda/digest.cc", "<tbb/task_group.h>", "only for base/* store/*"),
        ("capi/hooks.cc", "<oneapi/tbb.h>", "only for base/* store/*"),
        ("store/open.cc", "<CLI/CLI.hpp>", "only for cli/* examples/*"),
        ("cli/foreign/zip_parts.cc", "<zlib.h>", "only for cli/formats/*"),
        ("store/remote/push.cc", "<curl/curl.h>", "only for objects/s3/*"),
        ("objects/rados/rados_objects.cc", "<openssl/hmac.h>", "only for objects/s3/*"),
        ("objects/s3/http.cc", "<rados/librados.h>", "only for objects/rados/*"),
        # The rooms that the cases above do not name.
        ("objects/url.cc", '"objects/s3/http.h"', "goes up: objects/s3 lies above objects"),
        ("objects/s3/http.cc", '"objects/rados/rados_objects.h"', "goes up: objects/rados lies"),
        ("objects/url.cc", '"store/format/keys.h"', "goes up: objects may include"),
        ("store/ops/copy.cc", '"store/remote/owner.h"', "goes up: store/remote lies above"),
        ("store/remote/push.cc", '"store/group/group_store.h"', "goes up: store/group lies above"),
        ("store/save/save.cc", '"store/ops/copy.h"', "goes up: store/ops lies above store/save"),
        ("cli/verbs/show.cc", '"python/src/handles.h"', "goes up: cli may include"),
        ("python/src/store.cc", '"store/format/keys.h"', "goes up: python may include"),
        ("cli/formats/npy.cc", '"cli/print.h"', "goes up: cli lies above cli/formats"),
        ("cli/print.cc", '"cli/foreign/metadata.h"', "goes up: cli/foreign lies above cli"),
        ("cli/foreign/metadata.cc", '"cli/manual/manual.h"', "goes up: cli/manual lies above"),
        ("cli/formats/npy.cc", '"cli/foreign/metadata.h"', "goes up: cli/foreign lies above"),
        (
            "trainer_hooks/ranks/x.cc",
            '"trainer_hooks/layouts/axis.h"',
            "goes up: trainer_hooks/layouts lies",
        ),
        (
            "trainer_hooks/layouts/x.cc",
            '"trainer_hooks/state/x.h"',
            "goes up: trainer_hooks/state lies",
        ),
        ("codec/predict/x.cc", '"codec/plan.h"', "goes up: codec lies above codec/predict"),
        ("codec/entropy/x.cc", '"codec/predict/x.h"', "goes up: codec/predict lies above"),
        (
            "trainer_hooks/load/x.cc",
            '"trainer_hooks/save/x.h"',
            "goes up: trainer_hooks/save lies above trainer_hooks/load",
        ),
        (
            "trainer_hooks/state/x.cc",
            '"trainer_hooks/load/x.h"',
            "goes up: trainer_hooks/load lies above",
        ),
        ("cli/verbs/show.cc", '"cli/view/x.h"', "goes up: cli/view lies above cli/verbs"),
        ("cli/view/x.cc", '"cli/main.cc"', "goes up: cli/main.cc lies above cli/view"),
        ("cli/view/guard.cc", "<httplib.h>", "only for cli/view/http_server.cc"),
        ("store/db/seal_guard.cc", "<sodium.h>", "only for store/db/sealer.h store/db/sealer.cc"),
        ("store/ops/check.cc", "<nlohmann/json.hpp>", "only for cli/*"),
        ("cli/foreign/x.cc", "<nanobind/nanobind.h>", "only for python/src/*"),
        ("python/src/store.cc", '"cli/print.h"', "goes up: python may include"),
        ("python/src/store.cc", '"cli/formats/npy.h"', "goes up: python may include"),
    ]
    GOOD = [
        ("codec/entropy/zstd_stream.cc", "<zstd.h>"),
        ("codec/frame.cc", '"varve/status.h"'),
        ("store/save/save.cc", '"codec/frame.h"'),
        ("store/save/save.cc", "<rocksdb/db.h>"),
        ("store/save/save.cc", '"store/schema/steps_generated.h"'),
        ("store/save/save.cc", "<mutex>"),
        ("cuda/digest.cu", '"cuda/stream.h"'),
        ("cuda/digest.cu", "<cuda_runtime.h>"),
        ("cli/main.cc", '"store/db/store_impl.h"'),
        ("store/open.cc", '"store/group/group_store.h"'),
        ("codec/frame.cc", '"codec/planes/split.h"'),
        ("trainer_hooks/trainer_hooks.cc", '"trainer_hooks/group/agree.h"'),
        ("cli/main.cc", '"cli/manual/manual.h"'),
        ("include/varve/cuda.h", "<cuda_runtime.h>"),
        ("include/varve/hooks.h", '"varve/load.h"'),
        ("include/varve/varve.h", '"varve/hooks.h"'),
        ("include/varve/load.h", '"varve/store.h"'),
        ("trainer_hooks/load/load.cc", '"varve/load.h"'),
        ("capi/hooks.cc", '"varve/trainer_hooks.h"'),
        ("python/src/foreign.cc", '"cli/foreign/import_files.h"'),
        ("python/src/options.cc", '"cli/parse.h"'),
        ("python/src/module.cc", "<nanobind/nanobind.h>"),
        ("store/db/sealer.cc", "<sodium.h>"),
        ("cli/view/http_server.cc", "<httplib.h>"),
        ("cli/json.h", "<nlohmann/json.hpp>"),
    ]

    def test_finds_each_fault(self):
        for path, include, words in self.BAD:
            with self.subTest(path=path, include=include):
                faults = faults_of(path, include)
                self.assertTrue(faults, "found nothing")
                self.assertTrue(any(words in fault for fault in faults), faults)
                self.assertTrue(faults[0].startswith(f"{path}:1: "), faults)

    def test_allows_what_is_allowed(self):
        for path, include in self.GOOD:
            with self.subTest(path=path, include=include):
                self.assertEqual(faults_of(path, include), [])

    PUBLIC = "namespace varve {\nclass Store {\n  void Open();\n};\nint Count(Store* store);\n}\n"

    def test_finds_names_that_are_not_public(self):
        for path, line in (
            ("store/save/x.h", "class Store {};"),
            ("store/save/x.h", "int Count(Store* store);"),
            ("store/save/x.cc", "class Session {"),
            ("store/save/x.cc", "Status Hide(int x) {"),
            ("store/save/x.cc", "Result<std::vector<Session>> Hide::Open(int x) {"),
            ("store/save/x.cc", "using Names = std::vector<std::string>;"),
            ("store/save/x.cc", "constexpr int kLimit = 5;"),
            ("cli/print.cc", "std::string_view Hide() {"),
        ):
            with self.subTest(path=path, line=line):
                text = f"namespace varve {{\n\n{line}\n\n}}  // namespace varve\n"
                faults = faults_of_text(path, text, self.PUBLIC)
                self.assertEqual(len(faults), 1, faults)
                self.assertTrue(faults[0].startswith(f"{path}:3: "), faults)
                self.assertIn("belongs in varve::internal", faults[0])
                hidden = text.replace("varve", "varve::internal")
                self.assertEqual(faults_of_text(path, hidden, self.PUBLIC), [])

    def test_allows_public_names(self):
        for path, line in (
            ("store/save/x.h", "class Store;"),
            ("store/save/x.cc", "using namespace internal;"),
            ("store/save/x.cc", "void Store::Open() {"),
            ("store/save/x.cc", "int Count(Store* store) {"),
            ("store/save/x.cc", "namespace {\nint Helper() {\n}\n}  // namespace"),
        ):
            with self.subTest(path=path, line=line):
                text = f"namespace varve {{\n\n{line}\n\n}}  // namespace varve\n"
                self.assertEqual(faults_of_text(path, text, self.PUBLIC), [])

    def test_counts_structs_that_describe_a_tensor(self):
        own = "struct A {\n  DType dtype = DType::kF32;  // its type\n  std::vector<int64_t> shape{};\n};\n"
        turned = (
            "struct B {\n  std::span<const int64_t> shape;\n  // Its type.\n  DType dtype;\n};\n"
        )
        apart = "struct C {\n  DType dtype;\n  int size;\n  std::vector<int64_t> shape;\n};\n"
        based = "struct D : TensorSpec {\n  int size;\n};\n"
        call = "int Count(DType dtype,\n          std::vector<int64_t> shape);\n"
        for text, counted in (
            (own, (1, 0)),
            (turned, (1, 0)),
            (apart, (0, 0)),
            (based, (0, 1)),
            (call, (0, 0)),
            (own + turned + based + based, (2, 2)),
        ):
            with self.subTest(text=text):
                self.assertEqual(layering_test.count_descriptions(text), counted)

    def test_names_the_line(self):
        faults = faults_of("codec/frame.cc", "<vector>", '"store/format/keys.h"')
        self.assertEqual(len(faults), 1)
        self.assertTrue(faults[0].startswith("codec/frame.cc:2: "), faults)

    def test_finds_includes_relative_to_the_file(self):
        faults = faults_of("codec/frame.h", '"frame.h"')
        self.assertEqual(len(faults), 1)
        self.assertIn("full path", faults[0])

    def test_finds_what_the_umbrella_lacks(self):
        with tempfile.TemporaryDirectory() as folder:
            headers = pathlib.Path(folder, "include/varve")
            headers.mkdir(parents=True)
            (headers / "varve.h").write_text('#include "varve/store.h"\n')
            (headers / "store.h").write_text('#include "varve/status.h"\n')
            for name in ("status", "step", "cuda"):
                (headers / f"{name}.h").write_text("")
            self.assertEqual(
                layering_test.missing_in_umbrella(pathlib.Path(folder)), ["include/varve/step.h"]
            )

    def test_finds_circles(self):
        with tempfile.TemporaryDirectory() as folder:
            for path, include in (
                ("store/db/a.h", "store/format/b.h"),
                ("store/format/b.h", "store/db/a.h"),
                ("store/format/c.h", "base/d.h"),
            ):
                file = pathlib.Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f'#include "{include}"\n')
            self.assertEqual(
                layering_test.find_circles(pathlib.Path(folder)), [("store/format", "store/db")]
            )

    def test_the_program_fails_if_there_is_a_fault(self):
        def run(tree):
            with tempfile.TemporaryDirectory() as folder:
                for path, include in tree:
                    file = pathlib.Path(folder, path)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(f"#include {include}\n")
                done = subprocess.run(
                    [sys.executable, layering_test.__file__, folder],
                    capture_output=True,
                    text=True,
                )
                return done.returncode, done.stdout

        good = ("store/open.cc", '"base/util.h"')
        upward = ("base/util.h", '"store/open.cc"')
        for tree, code, says in (
            ([good], 0, "1 files, 0 upward includes, 0 circles, 0 other faults"),
            ([good, upward], 1, "base/util.h:1: #include of store/open.cc goes up"),
            ([good, upward], 1, "base and store reach each other by includes"),
            ([good, upward], 1, "2 files, 1 upward includes, 1 circles, 0 other faults"),
            ([("store/open.cc", "<zstd.h>")], 1, "0 upward includes, 0 circles, 1 other faults"),
            ([], 1, "0 files, "),
        ):
            with self.subTest(tree=tree, says=says):
                returned, printed = run(tree)
                self.assertEqual(returned, code, printed)
                self.assertIn(says, printed)


if __name__ == "__main__":
    unittest.main()
