# SPDX-License-Identifier: Apache-2.0
"""Shows that layering_test.py finds each kind of fault, and only those, in made trees."""

import pathlib
import tempfile
import unittest

import layering_test


def faults_of(path, *includes):
    """The faults of a tree whose only file is `path` with these include lines."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, path)
        file.parent.mkdir(parents=True)
        file.write_text("".join(f"#include {include}\n" for include in includes))
        num_files, faults = layering_test.check(pathlib.Path(folder))
        assert num_files == 1
        return faults


class LayeringTest(unittest.TestCase):
    BAD = [
        ("codec/frame.cc", '"store/keys.h"', "against the layers"),
        ("codec/frame.cc", "<thread>", "only for"),
        ("codec/frame.cc", "<zstd.h>", "only for codec/zstd*.cc"),
        ("codec/frame.cc", "<rocksdb/db.h>", "only for store/*"),
        ("store/save.cc", '"cli/main.h"', "against the layers"),
        ("store/save.cc", '"cuda/digest.h"', "against the layers"),
        ("store/save.cc", '"trainer_hooks/async.h"', "against the layers"),
        ("store/save.cc", "<cuda_runtime.h>", "only for cuda/*"),
        ("store/save.cc", "<nccl.h>", "only for cuda/*"),
        ("store/save.cc", "<mpi.h>", "only for trainer_hooks/*"),
        ("cuda/digest.cc", '"store/keys.h"', "against the layers"),
        ("cli/main.cc", '"tests/support/x.h"', "against the layers"),
        ("cli/main.cc", '"rocksdb/db.h"', "only for store/*"),
        ("examples/gpt/main.cc", '"store/keys.h"', "against the layers"),
        ("include/varve/store.h", "<rocksdb/db.h>", "only for store/*"),
        ("include/varve/store.h", '"flatbuffers/flatbuffers.h"', "only for store/*"),
        ("include/varve/store.h", '"store/schema/steps_generated.h"', "against the layers"),
        ("cli/main.cc", '"store/schema/steps_generated.h"', "only for store/*"),
        ("cli/main.cc", "<cuda/std/span>", "only for cuda/*"),
        ("include/varve/store.h", "<zstd.h>", "only for codec/zstd*.cc"),
        ("include/varve/store.h", "<nccl.h>", "only for cuda/*"),
        ("include/varve/store.h", "<cuda_runtime.h>", "only for cuda/*"),
        ("include/varve/store.h", '"codec/frame.h"', "against the layers"),
    ]
    GOOD = [
        ("codec/zstd_stream.cc", "<zstd.h>"),
        ("codec/frame.cc", '"varve/status.h"'),
        ("store/save.cc", '"codec/frame.h"'),
        ("store/save.cc", "<rocksdb/db.h>"),
        ("store/save.cc", '"store/schema/steps_generated.h"'),
        ("store/save.cc", "<mutex>"),
        ("cuda/digest.cu", '"cuda/stream.h"'),
        ("cuda/digest.cu", "<cuda_runtime.h>"),
        ("cli/main.cc", '"store/store_impl.h"'),
        ("include/varve/cuda.h", "<cuda_runtime.h>"),
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

    def test_names_the_line(self):
        faults = faults_of("codec/frame.cc", "<vector>", '"store/keys.h"')
        self.assertEqual(len(faults), 1)
        self.assertTrue(faults[0].startswith("codec/frame.cc:2: "), faults)

    def test_finds_includes_relative_to_the_file(self):
        faults = faults_of("codec/frame.h", '"frame.h"')
        self.assertEqual(len(faults), 1)
        self.assertIn("full path", faults[0])


if __name__ == "__main__":
    unittest.main()
