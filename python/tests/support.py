# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share."""

import importlib.util
import os
import pathlib
import tempfile
import unittest

import numpy as np
import varve

# In memory where that can be. These tests say nothing about disks, and flushes would be most of their time.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
REQUIRED = os.environ.get("VARVE_REQUIRE", "").split()


def has(package):
    """Whether a package is installed. ImportError: it is not, and $VARVE_REQUIRE names it, as in CI."""
    if importlib.util.find_spec(package) is not None:
        return True
    if package in REQUIRED:
        raise ImportError(f"{package} is not installed, and $VARVE_REQUIRE names it")
    return False


def require(*packages):
    """Skips a file of tests where a package is missing."""
    for package in packages:
        if not has(package):
            raise unittest.SkipTest(f"{package} is not installed")


def needs(package):
    """Skips a test where a package is missing."""
    return unittest.skipUnless(has(package), f"{package} is not installed")


def program(name):
    """A program of the build. The test is skipped where there is no build, as beside a wheel."""
    folder = os.environ.get("VARVE_BIN_DIR")
    if folder is None:
        raise unittest.SkipTest(f"{name} is looked for in $VARVE_BIN_DIR, which is not set")
    path = pathlib.Path(folder, name)
    if not path.exists():
        raise AssertionError(f"{path} is missing: build it first")
    return path


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
