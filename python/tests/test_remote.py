# SPDX-License-Identifier: Apache-2.0
"""Stores in object stores: push, pull, opening by URL. The object store is the folder of a file:// URL."""

import unittest

import numpy as np
import varve
from support import StoreTest


class RemoteTest(StoreTest):
    def setUp(self):
        super().setUp()
        self.url = f"file://{self.folder}/place"
        self.weights = np.random.default_rng(1).standard_normal((300, 1000)).astype(np.float32)

    def save(self, step):
        with self.open() as store:
            store.save(step, {"w": self.weights + step, "frozen": self.weights})

    def test_what_was_pushed_comes_back_elsewhere(self):
        self.save(1)
        first = varve.push(self.path, self.url)
        self.assertEqual((first.snapshot, first.is_new), (1, True))
        self.assertEqual(first.sent_bytes, first.total_bytes)
        self.assertFalse(varve.push(self.path, self.url).is_new)
        self.save(2)
        self.assertEqual(varve.push(self.path, self.url, dry_run=True).snapshot, 1)
        second = varve.push(self.path, self.url)
        self.assertEqual(second.snapshot, 2)
        self.assertLess(second.sent_bytes, second.total_bytes)
        found = varve.snapshots(self.url)
        self.assertEqual([info.number for info in found], [1, 2])
        self.assertLessEqual(found[0].created, found[1].created)
        for snapshot, steps in ((None, 2), (1, 1)):
            folder = self.folder / f"pulled_{snapshot}"
            report = varve.pull(self.url, folder, snapshot=snapshot, read_data=True)
            self.assertEqual(report.num_steps, steps)
            with varve.open(folder) as store:
                for info in store.steps():
                    np.testing.assert_array_equal(store[info.step]["w"], self.weights + info.step)

    def test_a_snapshot_is_read_where_it_lies(self):
        for step in (1, 2):
            self.save(step)
            varve.push(self.path, self.url)
        cache = self.folder / "cache"
        with varve.open(self.url, cache_folder=cache, cache_bytes=1 << 26) as store:
            self.assertEqual([info.step for info in store.steps()], [1, 2])
            np.testing.assert_array_equal(store["latest"]["w"][7:9], self.weights[7:9] + 2)
            self.assertEqual(store.check(read_data=True).errors, [])
            self.assertTrue(any(cache.iterdir()))
            with self.assertRaisesRegex(varve.FailedPreconditionError, "for reading only"):
                store.save(3, {"w": self.weights})
        with varve.open(self.url, snapshot=1) as store:
            self.assertEqual([info.step for info in store.steps()], [1])
            store.copy_to(self.folder / "copied")
        with varve.open(self.folder / "copied") as store:
            np.testing.assert_array_equal(store[1]["w"], self.weights + 1)
        with self.assertRaisesRegex(varve.NotFoundError, "snapshot 9"):
            varve.open(self.url, snapshot=9)

    def test_chosen_steps(self):
        for step in (1, 2, 3):
            self.save(step)
        varve.push(self.path, self.url, steps=["latest", 1])
        with varve.open(self.url) as store:
            self.assertEqual([info.step for info in store.steps()], [1, 3])
        with self.assertRaisesRegex(varve.NotFoundError, "9"):
            varve.push(self.path, self.url, steps=[9])

    def test_what_no_snapshot_needs_is_removed(self):
        for step in (1, 2, 3):
            self.save(step)
            varve.push(self.path, self.url)
        plan = varve.reclaim_remote(self.url, keep_last=1, dry_run=True)
        self.assertEqual((plan.dropped, plan.kept), ([1, 2], 1))
        self.assertEqual(len(varve.snapshots(self.url)), 3)
        self.assertEqual(varve.reclaim_remote(self.url, keep_last=1).dropped, [1, 2])
        self.assertEqual([info.number for info in varve.snapshots(self.url)], [3])
        with varve.open(self.url) as store:
            self.assertEqual(store.check(read_data=True).errors, [])

    def test_each_fault_is_named(self):
        self.save(1)
        self.assertEqual(varve.snapshots(self.url), [])
        cases = [
            (lambda: varve.open(self.url), varve.NotFoundError, "no snapshot"),
            (lambda: varve.open(self.url, "a"), varve.InvalidArgumentError, "varve.push"),
            (
                lambda: varve.open(self.path, snapshot=1),
                varve.InvalidArgumentError,
                "is a folder",
            ),
            (lambda: varve.push(self.path, "gs://bucket"), varve.InvalidArgumentError, "gs"),
            (lambda: varve.push(self.folder / "none", self.url), varve.NotFoundError, "none"),
            (
                lambda: varve.pull(self.url, self.folder / "empty"),
                varve.NotFoundError,
                "no snapshot",
            ),
            (
                lambda: varve.reclaim_remote(self.url, wait_for_pushes=-1),
                varve.InvalidArgumentError,
                "wait_for_pushes is -1",
            ),
        ]
        for call, kind, pattern in cases:
            with self.subTest(pattern), self.assertRaisesRegex(kind, pattern):
                call()


if __name__ == "__main__":
    unittest.main()
