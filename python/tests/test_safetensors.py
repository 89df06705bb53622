# SPDX-License-Identifier: Apache-2.0
"""safe_open and files of safetensors, judged by the safetensors package."""

import json
import unittest

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
import varve
import varve.safetensors.numpy
from support import StoreTest, equal_bits, random_bytes
from varve import _dtypes

STOCK_NUMPY = "BOOL U8 I8 U16 I16 U32 I32 U64 I64 F16 F32 F64 BF16 C64".split()


def tensors():
    rng = np.random.default_rng(1)
    found = {}
    for i, name in enumerate(STOCK_NUMPY):
        dtype = _dtypes.BY_NAME[name].numpy
        found[f"z{20 - i}.{name}"] = random_bytes(rng, dtype, (3, 4 + i))
        found[f'\u00e4 "quoted"\n{name}'] = random_bytes(rng, dtype, ())
        found[f"empty.{name}"] = random_bytes(rng, dtype, (0, 2))
    return found


class FilesTest(StoreTest):
    def test_files_are_equal_bit_for_bit(self):
        ours, theirs = self.folder / "ours", self.folder / "theirs"
        for given, metadata in [(tensors(), None), (tensors(), {"format": "np"}), ({}, None)]:
            varve.safetensors.save_file(given, ours, metadata)
            safetensors.numpy.save_file(given, theirs, metadata)
            self.assertEqual(ours.read_bytes(), theirs.read_bytes())
            self.assertEqual(
                varve.safetensors.save(given, metadata), safetensors.numpy.save(given, metadata)
            )
            for load, source in (
                (varve.safetensors.load_file, theirs),
                (varve.safetensors.numpy.load_file, theirs),
                (varve.safetensors.load, theirs.read_bytes()),
                (varve.safetensors.numpy.load, theirs.read_bytes()),
            ):
                found = load(source)
                self.assertEqual(found.keys(), given.keys())
                for name, array in given.items():
                    self.assertTrue(equal_bits(found[name], array), name)
                    found[name][...] = array  # the caller may write it
        self.assertEqual([path.name for path in self.folder.iterdir() if "tmp" in path.name], [])

    def test_strided_lazy_and_packed_tensors(self):
        path = self.folder / "file"
        base = np.arange(60, dtype=np.float32).reshape(6, 10)
        four = (np.arange(32, dtype=np.uint8) % 16).view(ml_dtypes.float4_e2m1fn)
        with self.open() as store:
            store.save(1, {"a": base.T, "four": four})
            varve.safetensors.save_file(store[1], path)
            varve.safetensors.save_file({"x": base.T, "y": store[1]["a"]}, self.folder / "both")
        with safetensors.safe_open(path, framework="np") as stock:
            np.testing.assert_array_equal(stock.get_tensor("a"), base.T)
            self.assertEqual(stock.get_slice("four").get_shape(), [32])
        found = varve.safetensors.load_file(path)
        self.assertTrue(equal_bits(found["four"], four))
        both = safetensors.numpy.load_file(self.folder / "both")
        np.testing.assert_array_equal(both["x"], both["y"])

    def test_a_file_that_cannot_be_written_leaves_nothing(self):
        for bad in ({"a": np.array(["text"])}, {"__metadata__": np.ones(2)}):
            with self.assertRaises(varve.InvalidArgumentError):
                varve.safetensors.save_file(bad, self.folder / "file")
        with self.assertRaises(varve.InvalidArgumentError):
            varve.safetensors.save_file({"a": np.ones(2)}, self.folder / "file", {"a": 1})
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_broken_files_are_refused(self):
        def file(header, data=b"", length=None):
            text = header if isinstance(header, bytes) else json.dumps(header).encode()
            return (len(text) if length is None else length).to_bytes(8, "little") + text + data

        def entry(**changes):
            return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}

        broken = [
            b"",
            b"1234567",
            file(b"{}", length=2**63),
            file(b"{}", length=3),
            file(b"{"),
            file(b"[]"),
            file(b"\xff\xfe"),
            file(b"[" * 200_000),
            file({}, b"gap"),
            file({"a": entry()}, bytes(7)),
            file({"a": entry()}, bytes(9)),
            file({"a": entry(shape=[3])}, bytes(8)),
            file({"a": entry(shape=[-2])}, bytes(8)),
            file({"a": entry(shape=[True, 2])}, bytes(8)),
            file({"a": entry(shape=2)}, bytes(8)),
            file({"a": entry(shape=[2**40, 2**40])}, bytes(8)),
            file({"a": entry(dtype="F33")}, bytes(8)),
            file({"a": entry(dtype=None)}, bytes(8)),
            file({"a": entry(data_offsets=[0])}, bytes(8)),
            file({"a": entry(data_offsets=[8, 16])}, bytes(16)),
            file({"a": entry(), "b": entry()}, bytes(8)),
            file({"a": {"dtype": "F32"}}, bytes(8)),
            file({"__metadata__": {"a": 1}}),
            file(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1}'),
        ]
        path = self.folder / "file"
        for content in broken:
            path.write_bytes(content)
            with self.assertRaises(varve.CorruptionError, msg=content[:80]):
                varve.safe_open(path, "np")
            with self.assertRaises(varve.CorruptionError, msg=content[:80]):
                varve.safetensors.load(content)
        with self.assertRaises(FileNotFoundError):
            varve.safe_open(self.folder / "none", "np")


class SafeOpenTest(StoreTest):
    def setUp(self):
        super().setUp()
        self.file = self.folder / "file.safetensors"
        self.tensors = tensors()
        safetensors.numpy.save_file(self.tensors, self.file, {"format": "np"})
        with self.open() as store:
            state = {"safetensors.format": "np", "epoch": 3}
            store.save(1, {"a": np.ones(2)})
            store.save(2, self.tensors, state=state, tags="best-one")

    def compare(self, target):
        with (
            safetensors.safe_open(self.file, framework="np") as stock,
            varve.safe_open(target, framework="np") as ours,
        ):
            self.assertEqual(sorted(ours.keys()), sorted(stock.keys()))
            self.assertEqual(ours.metadata(), stock.metadata())
            self.assertEqual(list(ours.offset_keys()), list(stock.offset_keys()))
            for name in stock.keys():
                self.assertTrue(equal_bits(ours.get_tensor(name), stock.get_tensor(name)), name)
                part, expected = ours.get_slice(name), stock.get_slice(name)
                self.assertEqual(part.get_shape(), expected.get_shape())
                self.assertEqual(part.get_dtype(), expected.get_dtype())
                if len(part.get_shape()) == 2 and part.get_shape()[0]:
                    for index in (slice(1, 3), (slice(None), slice(1, 2)), (1, slice(None))):
                        np.testing.assert_array_equal(
                            part[index].view(np.uint8), expected[index].view(np.uint8)
                        )
            self.assertEqual(ours.get_tensors().keys(), self.tensors.keys())
            for call in (ours.get_tensor, ours.get_slice):
                with self.assertRaises(varve.NotFoundError):
                    call("none")
        with self.assertRaises(varve.FailedPreconditionError):
            ours.keys()

    def test_a_file(self):
        self.compare(self.file)
        self.compare(str(self.file))

    def test_steps_of_a_store(self):
        self.compare(self.path)
        self.compare(f"varve://{self.path}@2")
        self.compare(f"varve://{self.path}@main@best-one")
        with varve.open(self.path) as store:
            self.compare(store[2])
        with self.assertRaises(varve.NotFoundError):
            varve.safe_open(f"varve://{self.path}@7", "np")
        with varve.safe_open(f"varve://{self.path}@1", "np") as opened:
            self.assertEqual((opened.keys(), opened.metadata()), (["a"], None))

    def test_framework(self):
        with self.assertRaises(varve.InvalidArgumentError):
            varve.safe_open(self.file, framework="tf")
        with self.assertRaises(varve.InvalidArgumentError):
            varve.safe_open(self.file, framework="np", backend="tape")
        with varve.safe_open(self.file, framework="np", backend="pread") as opened:
            self.assertTrue(opened.keys())

    def test_flax(self):
        try:
            import jax
            import safetensors.flax
        except ImportError:
            self.skipTest("jax is not installed")
        import varve.safetensors.flax

        given = {"a": jax.numpy.arange(12.0).reshape(3, 4), "b": jax.numpy.ones(3, "bfloat16")}
        data = varve.safetensors.flax.save(given, {"format": "flax"})
        self.assertEqual(data, safetensors.flax.save(given, {"format": "flax"}))
        path = self.folder / "flax"
        varve.safetensors.flax.save_file(given, path)
        for found in (varve.safetensors.flax.load(data), varve.safetensors.flax.load_file(path)):
            for name, array in given.items():
                self.assertIsInstance(found[name], jax.Array)
                self.assertTrue(equal_bits(np.asarray(found[name]), np.asarray(array)))
        with varve.safe_open(path, framework="flax") as opened:
            self.assertIsInstance(opened.get_slice("a")[1:], jax.Array)

    def test_torch_modules(self):
        try:
            import safetensors.torch
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        import varve.safetensors.torch

        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.wte = torch.nn.Embedding(10, 4)
                self.head = torch.nn.Linear(4, 10, bias=False)
                self.head.weight = self.wte.weight
                self.norm = torch.nn.LayerNorm(4)

        model = Tied()
        ours, theirs = self.folder / "ours", self.folder / "theirs"
        varve.safetensors.torch.save_model(model, ours, {"format": "pt"})
        safetensors.torch.save_model(model, str(theirs), {"format": "pt"})
        self.assertEqual(
            varve.safetensors.load_file(ours).keys(), varve.safetensors.load_file(theirs).keys()
        )
        self.assertEqual(
            varve.safe_open(ours, "np").metadata(), varve.safe_open(theirs, "np").metadata()
        )
        for load in (varve.safetensors.torch.load_model, safetensors.torch.load_model):
            for path in (ours, theirs):
                other = Tied()
                self.assertEqual([list(names) for names in load(other, path)], [[], []])
                for name, tensor in model.state_dict().items():
                    self.assertTrue(torch.equal(other.state_dict()[name], tensor), name)
                self.assertIs(other.head.weight, other.wte.weight)
        varve.safetensors.torch.save_file({"norm.bias": torch.ones(4), "x": torch.ones(1)}, ours)
        missing, unexpected = varve.safetensors.torch.load_model(Tied(), ours, strict=False)
        self.assertEqual((len(missing), unexpected), (3, ["x"]))
        with self.assertRaisesRegex(RuntimeError, r"norm.weight.*x"):
            varve.safetensors.torch.load_model(Tied(), ours)

    def test_torch(self):
        try:
            import safetensors.torch
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        import varve.safetensors.torch

        generator = torch.Generator().manual_seed(1)
        given = {
            str(dtype): torch.randint(0, 255, (4, 32), generator=generator)
            .to(torch.uint8)
            .view(dtype)
            for dtype in (
                torch.bfloat16,
                torch.float8_e4m3fn,
                torch.float8_e5m2,
                torch.float8_e8m0fnu,
                torch.float4_e2m1fn_x2,
                torch.float32,
                torch.int64,
                torch.complex64,
            )
        }
        ours, theirs = self.folder / "ours", self.folder / "theirs"
        safetensors.torch.save_file(given, theirs, {"format": "pt"})
        varve.safetensors.torch.save_file(given, ours, {"format": "pt"})
        self.assertEqual(ours.read_bytes(), theirs.read_bytes())
        path = self.folder / "store2"
        with varve.open(path, "w") as store:
            store.save(1, given)
        stock = safetensors.torch.load_file(theirs)
        for found in (
            varve.safetensors.torch.load_file(theirs),
            varve.safetensors.torch.load_file(path),
        ):
            self.assertEqual(found.keys(), stock.keys())
            for name, tensor in stock.items():
                self.assertEqual(
                    (found[name].dtype, found[name].shape), (tensor.dtype, tensor.shape)
                )
                self.assertTrue(
                    torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8))
                )
        for target in (theirs, path):
            with varve.safe_open(target, framework="pt", device="cpu") as opened:
                part = opened.get_slice("torch.bfloat16")[1:3, ::2]
                self.assertTrue(
                    torch.equal(
                        part.view(torch.int16), stock["torch.bfloat16"][1:3, ::2].view(torch.int16)
                    )
                )
                self.assertEqual(opened.get_tensor("torch.int64").device.type, "cpu")


if __name__ == "__main__":
    unittest.main()
