# SPDX-License-Identifier: Apache-2.0
"""What goes out to DCP and NumPy is read by stock loaders, where they are, and comes in again."""

import pathlib
import unittest
import zipfile

import harness
import numpy
import safetensors_bytes as files
from verb_case import VerbCase

GOLDEN = pathlib.Path(__file__).parents[2] / "golden/torch"
HAS_TORCH = harness.has("torch")
OF_TORCH = [dtype for dtype in files.BITS if not dtype.startswith("F6")]


class ExportCase(VerbCase):
    def save_all(self, step, dtypes):
        tensors = {dtype: files.random_tensor(self.rng, dtype, [4, 6]) for dtype in dtypes}
        tensors["é/large"] = files.random_tensor(self.rng, "F32", [1100, 700])
        tensors["empty"] = files.random_tensor(self.rng, "BF16", [0, 3])
        tensors["scalar"] = files.random_tensor(self.rng, "F64", [])
        self.save(step, tensors=tensors)
        return tensors

    def exported(self, step):
        out = self.folder / "out.safetensors"
        self.varve("export", step, "-o", out, "--force")
        return files.read(out)


class DcpTest(ExportCase):
    def test_comes_in_again(self):
        tensors = self.save_all(1, OF_TORCH)
        out = self.folder / "dcp"
        report = self.json("export", 1, "-o", out, "--format", "dcp")
        self.assertEqual(report["tensors"], len(tensors))
        self.assertEqual(sorted(p.name for p in out.iterdir()), [".metadata", "__0_0.distcp"])
        self.json("import", out, "--format", "dcp", "--step", 2)
        self.assertEqual(self.exported(2), tensors)
        self.fails(harness.EXISTS, "export", 1, "-o", out, "--format", "dcp", says="use --force")

    def test_values_of_dcp_go_out_again(self):
        self.varve("init")
        self.json("import", GOLDEN / "dcp1", "--format", "dcp", "--step", 1)
        out = self.folder / "dcp"
        self.json("export", 1, "-o", out, "--format", "dcp")
        self.json("import", out, "--format", "dcp", "--step", 2)
        self.assertEqual(self.exported(2), self.exported(1))
        first, second = self.json("show", 1), self.json("show", 2)
        self.assertEqual(second["items"], first["items"])
        self.assertEqual(second["trainer_state"]["extra"], first["trainer_state"]["extra"])

    def test_what_torch_lacks_is_named(self):
        self.save(1, tensors={"six": files.random_tensor(self.rng, "F6_E2M3", [4])})
        out = self.folder / "dcp"
        says = 'tensor "six" has the dtype F6_E2M3'
        self.fails(harness.FAILED, "export", 1, "-o", out, "--format", "dcp", says=says)
        self.assertFalse(out.exists())

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_stock_dcp_reads_it(self):
        import torch
        import torch.distributed.checkpoint as dcp
        import torch_files

        kinds = {
            **{"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16"},
            **{"U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16"},
            **{"BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64"},
            **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"},
        }
        tensors = self.save_all(1, kinds)
        out = self.folder / "dcp"
        self.json("export", 1, "-o", out, "--format", "dcp")
        state = {
            name: torch.zeros(shape, dtype=getattr(torch, kinds[dtype]))
            for name, (dtype, shape, _) in tensors.items()
        }
        dcp.load(state, checkpoint_id=str(out), no_dist=True)
        for name, (_, _, data) in tensors.items():
            self.assertEqual(torch_files.stored_bytes(state[name]), data, name)

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_stock_dcp_reads_values_and_nested_names(self):
        import torch
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        self.varve("init")
        self.json("import", GOLDEN / "dcp1", "--format", "dcp", "--step", 1)
        out = self.folder / "dcp"
        self.json("export", 1, "-o", out, "--format", "dcp")
        loaded = []
        for path in (GOLDEN / "dcp1", out):
            state = {"model": {"rows": torch.zeros(7, 5)}, "lr": 0.0, "name": ""}
            dcp.load(state, checkpoint_id=str(path), no_dist=True)
            # Takes all values, by the planner's data.
            dcp_to_torch_save(str(path), str(self.folder / "whole.pt"))
            whole = torch.load(self.folder / "whole.pt", weights_only=True)
            loaded.append((state, whole))
        (first, first_whole), (second, second_whole) = loaded
        self.assertEqual((second["lr"], second["name"]), (1e-3, "run"))
        self.assertTrue(torch.equal(first["model"]["rows"], second["model"]["rows"]))
        self.assertEqual(list(first_whole), list(second_whole))
        self.assertEqual(first_whole["betas"], second_whole["betas"])
        for name, tensor in first_whole["model"].items():
            self.assertTrue(torch.equal(tensor, second_whole["model"][name]), name)


class NpzTest(ExportCase):
    def test_numpy_reads_it_and_it_comes_in_again(self):
        exact = "BOOL U8 I8 U16 I16 U32 I32 U64 I64 F16 F32 F64 C64".split()
        tensors = self.save_all(1, exact)
        del tensors["empty"]
        out = self.folder / "x.npz"
        self.json("export", 1, "-o", out, "--format", "npz", "--exclude", "empty")
        with zipfile.ZipFile(out) as archive:
            self.assertIsNone(archive.testzip())
        with numpy.load(out) as loaded:
            self.assertEqual(sorted(loaded.files), sorted(tensors))
            for name, (_, shape, data) in tensors.items():
                self.assertEqual(list(loaded[name].shape), shape, name)
                self.assertEqual(loaded[name].tobytes(), data, name)
        self.json("import", out, "--format", "npz", "--step", 2)
        self.assertEqual(self.exported(2), tensors)

    def test_types_that_numpy_lacks_are_bits(self):
        dtype, shape, data = files.random_tensor(self.rng, "BF16", [4, 6])
        self.save(1, tensors={"w": (dtype, shape, data)})
        out = self.folder / "x.npz"
        done = self.varve("export", 1, "-o", out, "--format", "npz")
        self.assertIn(
            "NumPy lacks the type of 1 tensor, which are written as the bits", done.stderr
        )
        with numpy.load(out) as loaded:
            self.assertEqual((loaded["w"].dtype, loaded["w"].tobytes()), (numpy.uint16, data))


if __name__ == "__main__":
    unittest.main()
