# SPDX-License-Identifier: Apache-2.0
"""Arrays in and out: every dtype, strides, slices, and memory of the caller's."""

import array
import random
import sys
import unittest

import ml_dtypes
import numpy as np
import varve
from support import StoreTest, equal_bits, random_bytes
from varve import _arrays, _dtypes


class RoundTripTest(StoreTest):
    def test_every_dtype_comes_back_bit_for_bit(self):
        rng = np.random.default_rng(1)
        saved = {}
        for name, dtype in _dtypes.BY_NAME.items():
            for shape in [(), (0, 3), (8,), (300, 4), (3, 5, 8)]:
                if dtype.bits < 8 and shape == ():
                    continue
                saved[f"{name}.{'x'.join(map(str, shape))}"] = random_bytes(rng, dtype.numpy, shape)
        with self.open() as store:
            store.save(1, saved)
            checkpoint = store[1]
            self.assertEqual(checkpoint.keys(), sorted(saved))
            loaded = checkpoint.load()
            for name, value in saved.items():
                with self.subTest(name):
                    tensor = checkpoint[name]
                    self.assertTrue(equal_bits(loaded[name], value))
                    self.assertEqual((tensor.dtype, tensor.shape), (value.dtype, value.shape))
                    self.assertEqual(tensor.dtype_name, name.split(".")[0])
                    self.assertTrue(equal_bits(np.asarray(tensor), value))
                    out = np.zeros_like(value)
                    self.assertIs(checkpoint.read(name, out=out), out)
                    self.assertTrue(equal_bits(out, value))

    def test_packed_elements_lie_as_safetensors_has_them(self):
        four = np.array([1, 2, 15, 8], np.uint8).view(ml_dtypes.float4_e2m1fn)
        self.assertEqual(_dtypes.pack(four, _dtypes.BY_NAME["F4"]).tolist(), [0x21, 0x8F])
        six = np.array([1, 2, 3, 63], np.uint8).view(ml_dtypes.float6_e2m3fn)
        packed = _dtypes.pack(six, _dtypes.BY_NAME["F6_E2M3"]).tolist()
        self.assertEqual(packed, list((1 | 2 << 6 | 3 << 12 | 63 << 18).to_bytes(3, "little")))

    def test_strided_views(self):
        base = np.arange(2 * 30 * 40, dtype=np.int32).reshape(2, 30, 40)
        record = np.zeros(50, np.dtype([("a", "u1"), ("b", "<f4")]))
        record["b"] = np.arange(50)
        views = {
            "transposed": base.transpose(2, 0, 1),
            "reversed": base[::-1, ::-2, 3::5],
            "broadcast": np.broadcast_to(base[0, 0], (7, 40)),
            "column": base[1, :, 17],
            "fortran": np.asfortranarray(base[0]),
            "field": record["b"],
            "swapped": np.arange(40, dtype=">f8"),
            "empty": base[:, 5:5],
            "0-d": base[1, 2, 3],
        }
        with self.open() as store:
            store.save(1, views)
            for name, value in store[1].load().items():
                with self.subTest(name):
                    np.testing.assert_array_equal(value, views[name])
                    self.assertEqual(value.shape, np.shape(views[name]))

    def test_a_dense_or_strided_array_is_not_copied(self):
        base = np.arange(100, dtype=np.float32).reshape(10, 10)
        for view in (base, base.T, base[2:, ::3], base[::-1]):
            memory = _arrays.memory_of(view)
            self.assertEqual(memory.address, view.__array_interface__["data"][0])

    def test_the_saved_array_may_be_a_temporary(self):
        with self.open() as store:
            with store.save(1) as step:
                for i in range(20):
                    step[f"t{i}"] = np.full(50_000, i, np.float64)
            for i in range(20):
                self.assertTrue((store[1][f"t{i}"][...] == i).all())

    def test_buffers_numbers_and_dlpack(self):
        class OnlyDlpack:
            def __init__(self, value):
                self.value = value

            def __dlpack__(self, **options):
                return self.value.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.value.__dlpack_device__()

        with self.open() as store:
            with store.save(1) as step:
                step["array"] = array.array("i", range(10))
                step["memory"] = memoryview(b"bytes")
                step["float"] = 2.5
                step["dlpack"] = OnlyDlpack(np.arange(6.0).reshape(2, 3))
            found = store[1].load()
            np.testing.assert_array_equal(found["array"], np.arange(10, dtype=np.int32))
            self.assertEqual(found["memory"].tobytes(), b"bytes")
            self.assertEqual((found["float"].dtype, found["float"].shape), (np.float64, ()))
            np.testing.assert_array_equal(found["dlpack"], np.arange(6.0).reshape(2, 3))
            np.testing.assert_array_equal(np.from_dlpack(store[1]["dlpack"]), found["dlpack"])
            self.assertEqual(store[1]["dlpack"].__dlpack_device__(), (1, 0))

    def test_what_varve_has_no_dtype_for(self):
        with self.open() as store:
            with store.save(1) as step:
                for value in (np.zeros(2, np.complex128), np.array(["a"]), np.array([object()])):
                    with self.assertRaisesRegex(varve.InvalidArgumentError, "no dtype"):
                        step["x"] = value
                step["x"] = np.zeros(2)  # the save goes on


class SliceTest(StoreTest):
    def test_basic_indices_as_numpy(self):
        value = np.arange(7 * 11 * 13, dtype=np.int64).reshape(7, 11, 13)
        choice = random.Random(2)

        def part(length):
            if choice.random() < 0.3:
                return choice.randrange(-length, length)
            ends = [
                choice.choice([None, choice.randrange(-length - 2, length + 2)]) for _ in range(2)
            ]
            return slice(*ends, choice.choice([None, 1, 2, 5, -1, -3]))

        indices = [
            (),
            ...,
            None,
            (..., None),
            (None, 3),
            (..., 2),
            (1, ..., slice(2, 4)),
            np.int64(3),
            (3, 4, 5),
            (3, 4, 5, ...),
        ]
        indices += [tuple(part(n) for n in value.shape[: choice.randrange(4)]) for _ in range(100)]
        with self.open() as store:
            store.save(1, {"x": value})
            tensor = store[1]["x"]
            for index in indices:
                expected = value[index]
                found = tensor[index]
                self.assertEqual(type(found), type(expected), index)
                np.testing.assert_array_equal(found, expected, str(index))

    def test_slices_of_packed_elements(self):
        value = np.arange(6 * 8, dtype=np.uint8).reshape(6, 8) % 16
        value = value.view(ml_dtypes.float4_e2m1fn)
        with self.open() as store:
            store.save(1, {"x": value})
            self.assertTrue(equal_bits(store[1]["x"][1:5:2, 3:6], value[1:5:2, 3:6]))

    def test_indices_that_are_refused(self):
        with self.open() as store:
            store.save(1, {"x": np.zeros((2, 3))})
            tensor = store[1]["x"]
            for index, error in [
                (2, IndexError),
                ((0, -4), IndexError),
                ((0, 0, 0), IndexError),
                ((..., ...), IndexError),
                ([0, 1], TypeError),
                (True, TypeError),
                (np.array([True, False]), TypeError),
                ("a", TypeError),
            ]:
                with self.assertRaises(error, msg=str(index)):
                    tensor[index]
            with self.assertRaises(ValueError):
                np.array(tensor, copy=False)


class ReadIntoTest(StoreTest):
    def setUp(self):
        super().setUp()
        self.value = np.arange(600, dtype=np.float32).reshape(20, 30)
        self.store = self.open()
        self.store.save(1, {"x": self.value})

    def test_dense_strided_and_buffer(self):
        strided = np.zeros((40, 30), np.float32)[::2]
        store = self.store[1]
        store.read("x", out=strided)
        np.testing.assert_array_equal(strided, self.value)
        flat = np.zeros((20, 30), np.float32)
        store.read("x", out=memoryview(flat))
        np.testing.assert_array_equal(flat, self.value)
        both = {"x": np.zeros_like(self.value)}
        self.assertIs(store.load(out=both)["x"], both["x"])
        np.testing.assert_array_equal(both["x"], self.value)

    def test_what_does_not_fit_is_refused_and_stays(self):
        read_only = np.zeros((20, 30), np.float32)
        read_only.flags.writeable = False
        for out in (
            np.zeros((20, 30), np.float64),
            np.zeros((30, 20), np.float32),
            np.zeros((20, 30), ">f4"),
            read_only,
            bytes(2400),
            [0.0] * 600,
        ):
            with self.assertRaises(varve.InvalidArgumentError):
                self.store[1].read("x", out=out)
        with self.assertRaises(varve.NotFoundError):
            self.store[1].load(["x"], out={})


class WithoutTorchTest(StoreTest):
    def test_torch_is_not_imported(self):
        import subprocess

        code = "import sys, varve, varve.safetensors.torch; sys.exit('torch' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)


if __name__ == "__main__":
    unittest.main()
