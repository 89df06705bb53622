# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch, in and out. Skipped where torch is not installed."""

import unittest

import numpy as np
import varve
from support import StoreTest, require
from varve import _arrays, _dtypes

require("torch")
import torch  # noqa: E402


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class TorchTest(StoreTest):
    def test_every_dtype_comes_back_bit_for_bit(self):
        generator = torch.Generator().manual_seed(1)
        saved = {}
        for name, dtype in _dtypes.BY_NAME.items():
            if dtype.torch is None or not hasattr(torch, dtype.torch):
                continue
            bits = torch.randint(0, 2 if name == "BOOL" else 256, (6, 32), generator=generator)
            saved[name] = bits.to(torch.uint8).view(getattr(torch, dtype.torch))
        self.assertGreaterEqual(len(saved), 17)
        with self.open() as store:
            store.save(1, saved)
            loaded = store[1].load(framework="torch")
            for name, value in saved.items():
                with self.subTest(name):
                    self.assertEqual(
                        (loaded[name].dtype, loaded[name].shape), (value.dtype, value.shape)
                    )
                    self.assertEqual(raw(loaded[name]), raw(value))
                    out = torch.zeros(6, 32, dtype=torch.uint8).view(value.dtype)
                    self.assertIs(store[1].read(name, out=out), out)
                    self.assertEqual(raw(out), raw(value))

    def test_strides_parameters_and_views(self):
        base = torch.arange(2 * 30 * 40, dtype=torch.float32).reshape(2, 30, 40)
        saved = {
            "transposed": base.permute(2, 0, 1),
            "every other": base[:, ::2, 3::5],
            "expanded": base[0, 0].expand(7, 40),
            "parameter": torch.nn.Parameter(base[1]),
            "channels_last": base[None].contiguous(memory_format=torch.channels_last),
            "0-d": base[1, 2, 3],
            "empty": base[:, 5:5],
            "conjugate": torch.tensor([1 + 2j]).conj(),
        }
        with self.open() as store:
            store.save(1, saved)
            for name, value in store[1].load(framework="pt").items():
                self.assertTrue(torch.equal(value, saved[name].resolve_conj()), name)
            self.assertTrue(torch.equal(store[1]["parameter"].torch(), base[1]))
            self.assertTrue(torch.equal(torch.from_dlpack(store[1]["parameter"]), base[1]))
        memory = _arrays.memory_of(saved["transposed"])
        self.assertEqual(memory.address, base.data_ptr())

    def test_memory_that_is_not_what_it_seems(self):
        class Other(torch.Tensor):
            pass

        pairs = torch.tensor([1 + 2j, 3 - 4j])
        saved = {
            "negated": pairs.conj().imag,
            "subclass": torch.arange(4.0).as_subclass(Other),
            "gradient": torch.arange(3.0, requires_grad=True),
            "offset": torch.arange(10.0)[3:],
            "reversed axes of one": torch.arange(4.0).as_strided((1, 4, 1), (9, 1, 7)),
            "empty": torch.empty(0, 4).T,
            "zero strides": torch.tensor(5.0).expand(3, 2),
        }
        self.assertTrue(saved["negated"].is_neg())
        with self.open() as store:
            store.save(1, saved)
            for name, value in store[1].load(framework="torch").items():
                self.assertTrue(torch.equal(value, saved[name].as_subclass(torch.Tensor)), name)
                self.assertEqual(value.shape, saved[name].shape, name)

    def test_a_save_keeps_the_memory_that_it_was_given(self):
        parameter = torch.nn.Parameter(torch.full((1000, 1000), 3.0))
        with self.open() as store:
            with store.save(1) as step:
                step["a"] = parameter
                parameter.data = torch.zeros(2)
                del parameter
                others = [torch.full((1000, 1000), float(i)) for i in range(20)]
            self.assertEqual(store[1]["a"][...].min(), 3.0)
            self.assertEqual(len(others), 20)

    def test_reading_some_tensors_and_some_of_numpy(self):
        saved = {"a": torch.randn(7, 3), "b": torch.arange(5), "c": torch.ones(2)}
        with self.open() as store:
            store.save(1, saved)
            mixed = {"a": torch.zeros(7, 3), "b": np.zeros(5, np.int64), "c": torch.zeros(2)}
            store[1].load(out=mixed)
            for name, value in mixed.items():
                self.assertTrue(torch.equal(torch.as_tensor(value), saved[name]), name)
            one = torch.nn.Parameter(torch.zeros(2))
            self.assertIs(store[1].load("c", out={"c": one, "b": None})["c"], one)
            self.assertTrue(torch.equal(one, saved["c"]))
            for wrong in (torch.zeros(3, 7), torch.zeros(7, 3, dtype=torch.float16)):
                with self.assertRaises(varve.InvalidArgumentError) as caught:
                    store[1].read("a", out=wrong)
                self.assertIn("tensor a is F32 [7, 3], and", str(caught.exception))
            for names in ({"d": one}, {3: one}):
                with self.assertRaises((varve.NotFoundError, varve.InvalidArgumentError)):
                    store[1].load(out=names)

    def test_bfloat16_through_dlpack(self):
        value = torch.randn(5, 3).to(torch.bfloat16)
        with self.open() as store:
            store.save(1, {"a": value})
            self.assertTrue(torch.equal(torch.from_dlpack(store[1]["a"]), value))

    def test_reading_into_a_module(self):
        model, other = torch.nn.Linear(30, 20), torch.nn.Linear(30, 20)
        with self.open() as store:
            store.save(1, model.state_dict())
            store[1].load(out=other.state_dict())
            self.assertTrue(torch.equal(model.weight, other.weight))
            self.assertTrue(torch.equal(model.bias, other.bias))
            strided = torch.zeros(30, 20).T
            store[1].read("weight", out=strided)
            self.assertTrue(torch.equal(strided, model.weight))
            with self.assertRaises(varve.InvalidArgumentError):
                store[1].read("weight", out=torch.zeros(30, 20))
            with self.assertRaises(varve.InvalidArgumentError):
                store[1].read("weight", out=torch.zeros(20, 30, dtype=torch.float64))

    def test_what_is_refused(self):
        with self.open() as store:
            with store.save(1) as step:
                for bad in (
                    torch.zeros(3, dtype=torch.complex128),
                    torch.zeros(3, device="meta"),
                    torch.eye(3).to_sparse(),
                ):
                    with self.assertRaises(varve.InvalidArgumentError):
                        step["a"] = bad
                six = np.zeros(4, np.uint8).view(_dtypes.BY_NAME["F6_E2M3"].numpy)
                step["six"] = six
            with self.assertRaises(varve.InvalidArgumentError):
                store[1].read("six", framework="torch")
            with self.assertRaises(varve.InvalidArgumentError):
                store[1].read("six", framework="tf")


if __name__ == "__main__":
    unittest.main()
