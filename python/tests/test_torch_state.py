# SPDX-License-Identifier: Apache-2.0
"""varve.torch.save and load: nested state dicts. Skipped where torch is not installed."""

import collections
import enum
import math
import pickle
import subprocess
import sys
import unittest

import numpy as np
import varve
from support import StoreTest, require
from varve import _dtypes

require("torch")
import torch  # noqa: E402
import varve.torch  # noqa: E402


def raw(tensor):
    return tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class Color(enum.IntEnum):
    RED = 1


class StateDictTest(StoreTest):
    def round_trip(self, state):
        with self.open() as store:
            report = varve.torch.save(store, 1, state, on_existing="replace")
            self.assertIsInstance(report, varve.SaveReport)
            return varve.torch.load(store)

    def assert_same(self, found, expected, path="state"):
        self.assertIs(type(found), type(expected), path)
        if isinstance(expected, torch.Tensor):
            self.assertEqual((found.dtype, found.shape), (expected.dtype, expected.shape), path)
            self.assertEqual(raw(found), raw(expected.detach()), path)
        elif isinstance(expected, np.ndarray):
            self.assertEqual(found.dtype, expected.dtype, path)
            np.testing.assert_array_equal(found, expected)
        elif isinstance(expected, dict):
            self.assertEqual(list(found), list(expected), path)
            for key in expected:
                self.assert_same(found[key], expected[key], f"{path}.{key}")
        elif isinstance(expected, (list, tuple)):
            self.assertEqual(len(found), len(expected), path)
            for i, each in enumerate(expected):
                self.assert_same(found[i], each, f"{path}.{i}")
        elif isinstance(expected, float) and math.isnan(expected):
            self.assertTrue(math.isnan(found))
        else:
            self.assertEqual(found, expected, path)

    def test_malformed_values_are_an_error_that_says_so(self):
        x = torch.arange(6.0).reshape(2, 3)
        deep = "[" * 100_000
        malformed = [
            b"no JSON",
            deep.encode(),
            b'{"dict":1}',
            b'{"dict":[["x"]]}',
            b"{}",
            b'{"unknown":1}',
            b'{"dict":[["x",{"tensor":"x","strides":[1]}]]}',
            b'{"dict":[["x",{"tensor":"x","strides":[-1,1]}]]}',
            b'{"dict":[["x",{"tensor":"x","strides":["3","1"]}]]}',
            b'{"dict":[["x",{"tensor":"x","memory":0,"offset":2}]]}',
            b'{"dict":[["x",{"tensor":"x","memory":0,"offset":-4}]]}',
            b'{"dict":[["x",{"tensor":"x","memory":[],"offset":0}]]}',
            b'{"float":"one"}',
            b'{"bytes":"*"}',
            b'{"set":[{"dict":[]}]}',
            b'{"complex":[1]}',
        ]
        with self.open() as store:
            for step, item in enumerate(malformed):
                with store.save(step) as begun:
                    begun["x"] = x
                    begun.put_bytes("torch.state_dict", item)
                with self.subTest(item=item[:60]), self.assertRaises(varve.CorruptionError):
                    varve.torch.load(store, step)

    def test_import_varve_does_not_import_torch(self):
        code = (
            "import sys, varve; assert 'torch' not in sys.modules;"
            "varve.torch; assert 'torch' in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_what_training_programs_save(self):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
        for _ in range(3):
            model(torch.randn(8, 5)).square().sum().backward()
            optimizer.step()
            scheduler.step()
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        }
        loaded = self.round_trip(state)
        self.assert_same(loaded, state)
        self.assertEqual(loaded["model"]._metadata, state["model"]._metadata)
        other = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))
        other.load_state_dict(loaded["model"])
        torch.optim.AdamW(other.parameters()).load_state_dict(loaded["optimizer"])
        with self.open("r") as store:
            self.assertIn("model.0.weight", store[1].keys())
            self.assertIn("optimizer.state.0.exp_avg", store[1].keys())

    def test_plain_values(self):
        state = {
            "none": None,
            "numbers": [True, 0, -(2**70), 0.1, -0.0, 5e-324, math.inf, -math.inf, math.nan],
            "complex": complex(-0.0, math.inf),
            "text": "a\ud800\0 \u20ac",
            "bytes": bytes(range(256)),
            "tuple": (1, (2, [3])),
            "set": {1, 2},
            "keys": {1: "a", "1": "b", None: "c", (1, 2): "d", 0.5: "e", True + 1: "f"},
            "ordered": collections.OrderedDict(b=1, a=2),
            "counter": collections.Counter({3: 2}),
            "size": torch.Size([2, 3]),
            "dtype": torch.bfloat16,
            "device": torch.device("cpu"),
            "array": np.arange(6, dtype=">i2").reshape(2, 3).astype("i2"),
            "empty": {"list": [], "dict": {}, "tuple": ()},
        }
        self.assert_same(self.round_trip(state), state)
        self.assertEqual(
            self.round_trip([np.float32(0.1), np.int64(3)]), [float(np.float32(0.1)), 3]
        )

    def test_every_dtype(self):
        state = {}
        generator = torch.Generator().manual_seed(1)
        names = [dtype.torch for dtype in _dtypes.BY_NAME.values() if dtype.torch]
        names += ["complex128", "complex32", "float8_e4m3fnuz", "float8_e5m2fnuz"]
        for name in names:
            if not hasattr(torch, name):
                continue
            bits = torch.randint(0, 2 if name == "bool" else 256, (4, 32), generator=generator)
            state[name] = bits.to(torch.uint8).view(getattr(torch, name))
        self.assertGreaterEqual(len(state), 19)
        self.assert_same(self.round_trip(state), state)

    def test_memory_that_is_shared_is_shared_again(self):
        torch.manual_seed(2)
        flat = torch.randn(100)
        bytes_ = torch.zeros(64, dtype=torch.uint8)
        weight = torch.nn.Parameter(torch.randn(6, 4))
        state = {
            "wte": weight,
            "head": weight,
            "transposed": weight.T,
            "flat": flat,
            "views": [flat[3:7], flat[50:].view(5, 10), flat[::2]],
            "bytes": bytes_[3:],
            "floats": bytes_[4:12].view(torch.float32),
            "apart": [torch.arange(9)[:3], torch.arange(9)[6:]],
            "complex": torch.randn(3, dtype=torch.complex128),
        }
        state["real"] = state["complex"].real
        loaded = self.round_trip(state)
        self.assertEqual(loaded["wte"].data_ptr(), loaded["head"].data_ptr())
        for key, value in state.items():
            for a, b in zip(
                value if isinstance(value, list) else [value],
                loaded[key] if isinstance(value, list) else [loaded[key]],
                strict=True,
            ):
                self.assertTrue(torch.equal(a, b), key)
        loaded["wte"].data.zero_()
        self.assertEqual(float(loaded["transposed"].abs().sum()), 0)
        loaded["flat"].fill_(7)
        self.assertEqual(float(loaded["views"][2].sum()), 7 * 50)
        loaded["complex"].fill_(1j)
        self.assertEqual(float(loaded["real"].sum()), 0)
        loaded["bytes"].fill_(0)
        self.assertEqual(float(loaded["floats"].sum()), 0)
        with self.open("r") as store:
            self.assertEqual(store[1]["head"].alias_of, "wte")
            self.assertLess(store.stats().unique_bytes, store[1].info.logical_bytes)

    def test_strides(self):
        image = torch.randn(2, 3, 5, 7).contiguous(memory_format=torch.channels_last)
        state = {"image": image, "wide": torch.randn(3, 1).expand(3, 4), "0-d": torch.tensor(2.5)}
        loaded = self.round_trip(state)
        self.assertEqual(loaded["image"].stride(), image.stride())
        for name, value in state.items():
            self.assertTrue(torch.equal(loaded[name], value), name)

    def test_names_that_collide(self):
        state = {"a": {"b": torch.zeros(2)}, "a.b": torch.ones(3), "a.b~1": torch.ones(1)}
        self.assert_same(self.round_trip(state), state)

    def test_a_step_that_was_not_saved_by_it(self):
        with self.open() as store:
            store.save(3, {"w": torch.ones(3)})
            self.assert_same(varve.torch.load(store, 3), {"w": torch.ones(3)})

    def test_what_is_refused_is_named_and_nothing_is_saved(self):
        looped = []
        looped.append(looped)
        bad = {
            "an object": object(),
            "a function": len,
            "an enum": Color.RED,
            "itself": looped,
            "sparse": torch.eye(3).to_sparse(),
            "meta": torch.zeros(3, device="meta"),
            "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "lazy": torch.nn.LazyLinear(3).weight,
            "objects": np.array([object()]),
        }
        with self.open() as store:
            for name, value in bad.items():
                with self.subTest(name):
                    with self.assertRaises(varve.InvalidArgumentError) as caught:
                        varve.torch.save(store, 1, {"good": torch.ones(1), "x": {name: value}})
                    self.assertIn(f"x.{name}", str(caught.exception))
            for value in (torch.ones(3), 5, "text"):
                with self.assertRaises(varve.InvalidArgumentError):
                    varve.torch.save(store, 1, value)
            self.assertEqual(store.runs(), [])

    def test_nothing_is_pickled(self):
        real = pickle.Pickler, pickle.dumps
        self.addCleanup(lambda: (setattr(pickle, "dumps", real[1])))

        def refuse(*_args, **_options):
            raise AssertionError("pickled")

        pickle.dumps = refuse
        self.round_trip({"a": torch.ones(2), "b": b"x"})


if __name__ == "__main__":
    unittest.main()
