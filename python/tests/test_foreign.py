# SPDX-License-Identifier: Apache-2.0
"""Files of other formats come in and go out through the code of the command."""

import json
import pathlib
import pickle
import unittest
import zipfile

import ml_dtypes
import numpy as np
import safetensors.numpy
import varve
from support import StoreTest, equal_bits, needs

GOLDEN = pathlib.Path(__file__).parents[2] / "tests/golden/torch"


class Attack:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


class ExportTest(StoreTest):
    def save(self):
        self.arrays = {
            "model.a": np.arange(12, dtype=np.float32).reshape(3, 4),
            "model.b": np.ones(5, ml_dtypes.bfloat16),
            "other": np.arange(3),
        }
        with varve.open(self.path, "w") as store:
            store.save(7, self.arrays)
        return varve.open(self.path)

    def test_files_of_numpy_and_safetensors(self):
        with self.save() as store:
            seen = []
            files = store[7].export_files(
                self.folder / "x.safetensors", progress=lambda d, t: seen.append((d, t))
            )
            self.assertEqual(files, [str(self.folder / "x.safetensors")])
            self.assertEqual(seen[-1], (82, 82))
            found = safetensors.numpy.load_file(files[0])
            for name, array in self.arrays.items():
                self.assertTrue(equal_bits(found[name], array), name)
            with self.assertWarnsRegex(UserWarning, "model.b"):
                store[7].export_files(self.folder / "x.npz", format="npz", include="model.*")
            self.assertEqual(sorted(np.load(self.folder / "x.npz")), ["model.a", "model.b"])

    def test_shards(self):
        with self.save() as store:
            files = store[7].export_files(self.folder / "cut", max_shard_bytes=50)
            self.assertTrue(files[-1].endswith(".index.json"))
            self.assertGreater(len(files), 2)

    def test_refused(self):
        out = self.folder / "x.safetensors"
        with self.save() as store:
            store[7].export_files(out)
            with self.assertRaisesRegex(varve.AlreadyExistsError, "x.safetensors"):
                store[7].export_files(out)
            store[7].export_files(out, overwrite=True, exclude=["model.*"])
            self.assertEqual(list(safetensors.numpy.load_file(out)), ["other"])
            with self.assertRaisesRegex(varve.NotFoundError, "choose no tensor of step 7"):
                store[7].export_files(self.folder / "y", include="nothing*")
            with self.assertRaisesRegex(varve.InvalidArgumentError, 'no format "zip"'):
                store[7].export_files(self.folder / "y", format="zip")
            with self.assertRaisesRegex(varve.InvalidArgumentError, "safetensors only"):
                store[7].export_files(self.folder / "y", format="npz", max_shard_bytes=1)
            self.assertFalse((self.folder / "y").exists())

    @needs("torch")
    def test_stock_dcp_reads_an_exported_folder(self):
        import torch
        import torch.distributed.checkpoint as dcp

        with self.save() as store:
            store[7].export_files(self.folder / "dcp", format="dcp")
        state = {"model.a": torch.zeros(3, 4), "other": torch.zeros(3, dtype=torch.int64)}
        dcp.load(state, checkpoint_id=str(self.folder / "dcp"), no_dist=True)
        for name, tensor in state.items():
            self.assertTrue(equal_bits(tensor.numpy(), self.arrays[name]), name)


class ImportTest(StoreTest):
    def test_arrays_of_numpy(self):
        arrays = {"a": np.arange(12.0).reshape(3, 4), "b": np.asfortranarray(np.ones((2, 5), "f4"))}
        np.savez_compressed(self.folder / "x.npz", **arrays)
        seen = []
        with varve.open(self.path, "w") as store:
            report = store.import_files(
                self.folder / "x.npz",
                3,
                format="npz",
                tags="first",
                progress=lambda d, t: seen.append(d),
            )
            self.assertEqual((report.step, report.num_tensors), (3, 2))
            self.assertTrue(seen)
            for name, array in arrays.items():
                np.testing.assert_array_equal(np.asarray(store["first"][name]), array)

    def test_a_file_of_torch_without_torch(self):
        with varve.open(self.path, "w") as store:
            report = store.import_files(str(GOLDEN / "training0.pt"), format="torch")
            self.assertEqual(report.step, 100)
            checkpoint = store["latest"]
            self.assertIn("model.0.weight", checkpoint.keys())
            self.assertEqual(checkpoint.state["torch.args.name"], "run-é")
            item = json.loads(checkpoint.read_bytes("torch.state_dict"))
            self.assertEqual(next(iter(item)), "dict")

    def test_several_files(self):
        folder = GOLDEN / "sharded0"
        shards = sorted(folder.glob("*.bin"))
        with varve.open(self.path, "w") as store:
            store.import_files(shards, 1, format="torch")
            store.import_files(folder, 2, format="torch")
            self.assertEqual(sorted(store[1].keys()), sorted(store[2].keys()))

    def test_an_attack_is_an_error_and_does_nothing(self):
        marker, path = self.folder / "executed", self.folder / "x.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/data.pkl", pickle.dumps(Attack(marker), 2))
        with varve.open(self.path, "w") as store:
            with self.assertRaisesRegex(
                varve.InvalidArgumentError, "the pickle uses .*open, which"
            ):
                store.import_files(path, 1, format="torch")
            with self.assertRaisesRegex(varve.InvalidArgumentError, "the step is missing"):
                store.import_files(path, format="npz")
            with self.assertRaisesRegex(varve.InvalidArgumentError, 'no format "zip"'):
                store.import_files(path, 1, format="zip")
            self.assertEqual(store.runs(), [])
        self.assertFalse(marker.exists())

    @needs("torch")
    def test_values_come_back_as_torch_loads_them(self):
        import torch
        import varve.torch

        expected = torch.load(GOLDEN / "training0.pt", weights_only=True)
        with varve.open(self.path, "w") as store:
            store.import_files(GOLDEN / "training0.pt", format="torch")
            found = varve.torch.load(store)
        self.assertEqual(found["optimizer"]["param_groups"], expected["optimizer"]["param_groups"])
        self.assertEqual(found["rng"]["python"], expected["rng"]["python"])
        for name, tensor in expected["model"].items():
            self.assertTrue(torch.equal(found["model"][name], tensor))
        optimizer = torch.optim.AdamW(
            [torch.nn.Parameter(t.clone()) for t in found["model"].values()], amsgrad=True
        )
        optimizer.load_state_dict(found["optimizer"])

    @needs("torch")
    def test_dcp_reads_an_imported_folder(self):
        import torch
        import torch.distributed.checkpoint as dcp
        import varve.torch

        folder = str(GOLDEN / "dcp1")
        state = {"model": {"rows": torch.zeros(7, 5), "columns": torch.zeros(4, 9)}, "lr": 0.0}
        expected = {"model": {name: t.clone() for name, t in state["model"].items()}, "lr": 0.0}
        dcp.load(expected, checkpoint_id=folder, no_dist=True)
        with varve.open(self.path, "w") as store:
            store.import_files(folder, format="dcp")
        reader = varve.torch.VarveStorageReader(self.path)
        dcp.load(state, storage_reader=reader, no_dist=True)
        self.assertEqual(state["lr"], expected["lr"])
        for name, tensor in expected["model"].items():
            self.assertTrue(torch.equal(state["model"][name], tensor))


if __name__ == "__main__":
    unittest.main()
