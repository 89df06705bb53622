# SPDX-License-Identifier: Apache-2.0
"""What goes in comes out, bit for bit: import, export and get, judged by NumPy and safetensors."""

import json
import random
import unittest

import harness
import ml_dtypes
import numpy
import safetensors_bytes as files
from safetensors.numpy import load_file, save_file

CHUNK = 262_144  # elements

# How NumPy reads the raw bits that .npy and .bin files hold.
RAW = {8: numpy.uint8, 16: numpy.uint16, 32: numpy.uint32, 64: numpy.uint64}
NUMPY = {
    "BOOL": numpy.bool_,
    "U8": numpy.uint8,
    "I8": numpy.int8,
    "U16": numpy.uint16,
    "I16": numpy.int16,
    "U32": numpy.uint32,
    "I32": numpy.int32,
    "U64": numpy.uint64,
    "I64": numpy.int64,
    "F16": numpy.float16,
    "F32": numpy.float32,
    "F64": numpy.float64,
    "C64": numpy.complex64,
}
ONLY_ML = {
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}
SUB_BYTE_ML = {
    "F4": ml_dtypes.float4_e2m1fn,
    "F6_E2M3": ml_dtypes.float6_e2m3fn,
    "F6_E3M2": ml_dtypes.float6_e3m2fn,
}


def unpack(dtype, data):
    """The elements of a type below a byte, one a byte, from the low bits up."""
    bits = numpy.unpackbits(numpy.frombuffer(data, numpy.uint8), bitorder="little")
    groups = bits.reshape(-1, files.BITS[dtype])
    return (groups << numpy.arange(files.BITS[dtype], dtype=numpy.uint8)).sum(
        axis=1, dtype=numpy.uint8
    )


def values(dtype, data):
    """A vector of what the bytes mean."""
    if dtype in SUB_BYTE_ML:
        return unpack(dtype, data).view(SUB_BYTE_ML[dtype]).astype(numpy.float64)
    if dtype in ONLY_ML:
        return numpy.frombuffer(data, ONLY_ML[dtype]).astype(numpy.float64)
    return numpy.frombuffer(data, NUMPY[dtype])


def random_slice(rng, size):
    """A part of a --slice, and the same for NumPy."""
    if size > 0 and rng.random() < 0.3:
        index = rng.randrange(-size, size)
        return str(index), index
    ends = [rng.choice([None, rng.randint(-size - 2, size + 2)]) for _ in range(2)]
    return ":".join("" if end is None else str(end) for end in ends), slice(*ends)


class RoundTripTest(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(20)
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        harness.varve(self.store, "init")

    def tearDown(self):
        harness.check(self.store)

    def import_tensors(self, tensors, step=1, metadata=None):
        source = files.write(self.folder / f"in{step}.safetensors", tensors, metadata)
        return harness.varve_json(self.store, "import", source, "--step", step)

    def export(self, step=1, *arguments):
        out = self.folder / "out.safetensors"
        harness.varve(self.store, "export", step, "-o", out, "--force", *arguments)
        return out

    def assert_round_trip(self, tensors):
        report = self.import_tensors(tensors)
        self.assertEqual(report["tensors"], len(tensors))
        self.assertEqual(report["logical_bytes"], sum(len(data) for _, _, data in tensors.values()))
        self.assertEqual(files.read(self.export()), tensors)

    def test_all_dtypes_with_sizes_around_chunks(self):
        tensors = {}
        for dtype in files.BITS:
            for elements in (0, 8, CHUNK - 8, CHUNK, CHUNK + 8, 4 * CHUNK + 16):
                tensors[f"{dtype}.{elements}"] = files.random_tensor(self.rng, dtype, [elements])
        self.assert_round_trip(tensors)

    def test_scalars_and_empty_tensors(self):
        tensors = {}
        for dtype in files.BITS:
            if files.BITS[dtype] >= 8:
                tensors[f"scalar {dtype}"] = files.random_tensor(self.rng, dtype, [])
                tensors[f"one {dtype}"] = files.random_tensor(self.rng, dtype, [1, 1])
            tensors[f"empty {dtype}"] = files.random_tensor(self.rng, dtype, [3, 0, 5])
        self.assert_round_trip(tensors)
        for name, (dtype, shape, data) in tensors.items():
            out = self.folder / "x.npy"
            harness.varve(self.store, "get", 1, name, "-o", out, "--force")
            self.assertEqual(numpy.load(out).tobytes(), data, name)
            if dtype not in SUB_BYTE_ML:
                self.assertEqual(list(numpy.load(out).shape), shape, name)
            harness.varve(self.store, "get", 1, name)

    def test_odd_names(self):
        names = [
            " ",
            "a b",
            "a/b/c",
            "/",
            ".",
            "..",
            "../x",
            "-o",
            "--json",
            "latest",
            "é",
            "日本語",
            "\U0001f600",
            "a\nb",
            "a\tb",
            "\x1b[2J",
            '"',
            "\\",
            "'",
            "a@b:c",
            "*",
            "$HOME",
            "a" * 1024,
        ]
        tensors = {name: files.random_tensor(self.rng, "F32", [3]) for name in names}
        self.assert_round_trip(tensors)
        self.assertEqual(
            {tensor["name"] for tensor in harness.varve_json(self.store, "ls", 1)}, set(names)
        )
        harness.varve(self.store, "ls", 1)
        for name in names:
            out = self.folder / "x.bin"
            harness.varve(self.store, "get", "-o", out, "--force", "--", 1, name)
            self.assertEqual(out.read_bytes(), tensors[name][2], name)

    def test_no_tensors(self):
        self.assert_round_trip({})

    def test_export_writes_the_bytes_of_the_stock_package(self):
        generator = numpy.random.default_rng(1)
        arrays = {
            f"{dtype}.{i}": generator.integers(0, 2, (3, 5)).astype(NUMPY[dtype])
            for dtype in NUMPY
            for i in (2, 10, 1)
        }
        stock = self.folder / "stock.safetensors"
        save_file(arrays, stock, metadata={"format": "np"})
        harness.varve(self.store, "import", stock, "--step", 1)
        self.assertEqual(self.export().read_bytes(), stock.read_bytes())

    def test_metadata_comes_back(self):
        metadata = {"format": "pt", "": "empty key", 'é "\n': "odd", "step": "12"}
        self.import_tensors({"a": files.random_tensor(self.rng, "U8", [3])}, 1, metadata)
        self.import_tensors({"a": files.random_tensor(self.rng, "U8", [3])}, 2)
        self.assertEqual(files.read_metadata(self.export(1)), metadata)
        self.assertIsNone(files.read_metadata(self.export(2)))
        self.assertEqual(
            harness.varve_json(self.store, "show", 1)["trainer_state"]["extra"][
                "safetensors.format"
            ],
            "pt",
        )

    def test_get_writes_npy(self):
        tensors = {dtype: files.random_tensor(self.rng, dtype, [5, 8]) for dtype in files.BITS}
        self.import_tensors(tensors)
        for dtype, tensor in tensors.items():
            out = self.folder / f"{dtype}.npy"
            done = harness.varve(self.store, "get", 1, dtype, "-o", out)
            array = numpy.load(out)
            self.assertEqual(array.tobytes(), tensor[2], dtype)
            if dtype in NUMPY:
                self.assertEqual((array.dtype, array.shape), (NUMPY[dtype], (5, 8)))
                self.assertEqual(done.stderr, "")
            else:
                self.assertEqual(array.dtype, RAW[max(8, files.BITS[dtype])])
                self.assertIn("raw bits are written as unsigned integers", done.stderr)

    def test_get_writes_safetensors(self):
        tensors = {
            f"x.{dtype}": files.random_tensor(self.rng, dtype, [6, 8]) for dtype in files.BITS
        }
        self.import_tensors(tensors)
        for name, (dtype, _, data) in tensors.items():
            out = self.folder / "one.safetensors"
            harness.varve(self.store, "get", 1, name, "--slice", "2:4", "-o", out, "--force")
            row = len(data) // 6
            self.assertEqual(files.read(out), {name: (dtype, [2, 8], data[2 * row : 4 * row])})

    def test_slices_are_those_of_numpy(self):
        generator = numpy.random.default_rng(2)
        shapes = {
            "vector": (3 * CHUNK + 5,),
            "matrix": (700, 1003),
            "cube": (9, 64, 1001),
            "four": (3, 5, 7, 11),
            "flat": (1, 0, 4),
            "column": (2 * CHUNK, 1),
        }
        arrays = {
            name: generator.standard_normal(shape).astype(numpy.float32)
            for name, shape in shapes.items()
        }
        source = self.folder / "in.safetensors"
        save_file(arrays, source)
        harness.varve(self.store, "import", source, "--step", 1)
        for name, array in arrays.items():
            for _ in range(12):
                parts = [
                    random_slice(self.rng, size)
                    for size in array.shape[: self.rng.randint(1, array.ndim)]
                ]
                text, index = ",".join(part[0] for part in parts), tuple(part[1] for part in parts)
                out = self.folder / "x.npy"
                harness.varve(self.store, "get", 1, name, f"--slice={text}", "-o", out, "--force")
                numpy.testing.assert_array_equal(
                    numpy.load(out), array[index], f"{name}[{text}]", strict=True
                )

    def test_get_summary_is_that_of_numpy(self):
        tensors = {}
        for dtype in files.BITS:
            tensors[dtype] = files.random_tensor(self.rng, dtype, [24])
        self.import_tensors(tensors)
        for dtype, (_, _, data) in tensors.items():
            shown = harness.varve_json(self.store, "get", 1, dtype)
            self.assertEqual((shown["dtype"], shown["shape"]), (dtype, [24]))
            expected = values(dtype, data)
            if dtype == "C64":
                self.assertIsNone(shown["min"])
                expected = expected.view(numpy.float32)
                self.assertEqual(len(shown["values"]), 16)
            else:
                numbers = (
                    expected[~numpy.isnan(expected)] if expected.dtype.kind == "f" else expected
                )
                self.assertEqual(shown["nan"], len(expected) - len(numbers), dtype)
                self.assertEqual(float(shown["min"]), float(numbers.min()), dtype)
                self.assertEqual(float(shown["max"]), float(numbers.max()), dtype)
                if expected.dtype.kind in "iu":
                    self.assertEqual(shown["max"], int(numbers.max()))
                with numpy.errstate(invalid="ignore"):  # infinities of both signs have no mean
                    mean = numbers.astype(numpy.float64).mean()
                numpy.testing.assert_allclose(float(shown["mean"]), mean, 1e-9, err_msg=dtype)
            first = numpy.array([float(value) for value in shown["values"]])
            wanted = expected[: len(first)].astype(numpy.float64)
            numpy.testing.assert_array_equal(first, wanted, dtype)

    def test_sharded_files_in_and_out(self):
        tensors = {
            f"layer.{i}": files.random_tensor(self.rng, "F32", [1000 + i]) for i in range(10)
        }
        self.import_tensors(tensors, metadata={"format": "pt"})
        folder = self.folder / "shards"
        folder.mkdir()
        report = harness.varve_json(
            self.store, "export", 1, "-o", folder, "--max-shard-size", "10KB"
        )
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"]["total_size"], report["logical_bytes"])
        self.assertEqual(len(report["files"]), 6)
        merged = {}
        for i in range(1, 6):
            part = folder / f"model-{i:05}-of-00005.safetensors"
            self.assertEqual(files.read_metadata(part), {"format": "pt"})
            held = files.read(part)
            self.assertLessEqual(sum(len(data) for _, _, data in held.values()), 10_000)
            for name in held:
                self.assertEqual(index["weight_map"][name], part.name)
            merged |= held
        self.assertEqual(merged, tensors)
        again = harness.varve_json(
            self.store, "import", folder / "model.safetensors.index.json", "--step", 2
        )
        self.assertEqual((again["tensors"], again["new_bytes"]), (10, 0))
        self.assertEqual(files.read(self.export(2)), tensors)

    def test_several_files_become_one_step(self):
        a = {f"a.{i}": files.random_tensor(self.rng, "BF16", [10, i]) for i in range(5)}
        b = {f"b.{i}": files.random_tensor(self.rng, "I64", [i]) for i in range(5)}
        harness.varve(
            self.store,
            "import",
            files.write(self.folder / "a", a),
            files.write(self.folder / "b", b),
            "--step",
            1,
        )
        self.assertEqual(files.read(self.export()), a | b)

    def test_export_of_chosen_tensors(self):
        names = ["model.a.w", "model.a.b", "model.b.w", "master.a.w"]
        tensors = {name: files.random_tensor(self.rng, "U8", [3]) for name in names}
        self.import_tensors(tensors)
        chosen = self.export(1, "--include", "model.*", "--include", "master.*", "--exclude", "*.b")
        self.assertEqual(set(files.read(chosen)), {"model.a.w", "model.b.w", "master.a.w"})
        stock = load_file(self.export(1, "--include", "*.w", "--exclude", "master*"))
        self.assertEqual(sorted(stock), ["model.a.w", "model.b.w"])

    def test_derived_tensors(self):
        master = numpy.random.default_rng(3).standard_normal((300, 1001)).astype(numpy.float32)
        tensors = {
            "master.w": ("F32", [300, 1001], master.tobytes()),
            "model.w": ("BF16", [300, 1001], master.astype(ml_dtypes.bfloat16).tobytes()),
            "model.other": files.random_tensor(self.rng, "BF16", [300, 1001]),
            "master.other": ("F32", [300, 1001], master.tobytes()),
        }
        source = files.write(self.folder / "in.safetensors", tensors)
        harness.varve(self.store, "import", source, "--step", 1, "--derive", "model.*=master.*")
        self.assertEqual(files.read(self.export()), tensors)

    def test_derived_tensors_without_their_sources(self):
        generator = numpy.random.default_rng(4)
        master = generator.standard_normal((3, CHUNK // 2, 2)).astype(numpy.float32)
        for step in (1, 2):
            master += generator.standard_normal(master.shape).astype(numpy.float32) * 1e-6
            model = master.astype(ml_dtypes.bfloat16).view(numpy.uint16)
            model[1, 7, 0] ^= 1  # so that the second of three chunks is no copy
            tensors = {
                "master.w": ("F32", list(master.shape), master.tobytes()),
                "model.w": ("BF16", list(model.shape), model.tobytes()),
            }
            source = files.write(self.folder / "in.safetensors", tensors)
            report = harness.varve_json(
                self.store, "import", source, "--step", step, "--derive", "model.*=master.*"
            )
            self.assertEqual(report["new_bytes"], master.nbytes + model.nbytes // 3)
        del tensors["master.w"]
        self.assertEqual(self.import_tensors(tensors, 3)["new_bytes"], 0)
        harness.varve(self.store, "drop", 1, 2)
        harness.varve(self.store, "reclaim", "--all")
        self.assertEqual(files.read(self.export(3)), tensors)
        for _ in range(20):
            parts = [random_slice(self.rng, size) for size in model.shape]
            text, index = ",".join(part[0] for part in parts), tuple(part[1] for part in parts)
            out = self.folder / "x.npy"
            harness.varve(self.store, "get", 3, "model.w", f"--slice={text}", "-o", out, "--force")
            numpy.testing.assert_array_equal(numpy.load(out), model[index], text, strict=True)


if __name__ == "__main__":
    unittest.main()
