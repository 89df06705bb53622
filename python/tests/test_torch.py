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
