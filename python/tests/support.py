# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share."""

import os
import pathlib
import tempfile
import unittest

import numpy as np
import varve

# In memory where that can be. These tests say nothing about disks, and flushes would be most of their time.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class StoreTest(unittest.TestCase):
    """A test with a folder of its own. At its end each store there is checked in full."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="varve_python_", dir=MEMORY)
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.path = self.folder / "store"

    def tearDown(self):
        for path in sorted(self.folder.iterdir()):
            if (path / "FORMAT").exists() or (path / "GROUP").exists():
                with varve.open(path) as store:
                    report = store.check(read_data=True)
                self.assertEqual(report.errors, [], path.name)

    def open(self, mode="a", **options):
        store = varve.open(self.path, mode, **options)
        self.addCleanup(store.close)
        return store


def random_bytes(rng, dtype, shape):
    """An array of random elements of a NumPy dtype, some of them NaN where there are any."""
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.name.startswith(("float4_", "float6_")):
        return (
            rng.integers(0, 16 if dtype.name.startswith("float4_") else 64, shape)
            .astype(np.uint8)
            .view(dtype)
        )
    count = int(np.prod(shape)) * dtype.itemsize
    return rng.integers(0, 256, count).astype(np.uint8).view(dtype).reshape(shape)


def equal_bits(a, b):
    """Whether two arrays have the same dtype, shape and bytes."""
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
