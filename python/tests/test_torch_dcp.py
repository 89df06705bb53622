# SPDX-License-Identifier: Apache-2.0
"""varve as the storage of torch.distributed.checkpoint, in one process and in two that are connected by
gloo. Skipped where torch is not installed."""

import inspect
import os
import pathlib
import random
import threading
import unittest
import warnings

import numpy as np
import varve
from support import StoreTest, require

require("torch")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from ranks import RanksTest, Replicate, Shard, connect, distribute_tensor  # noqa: E402
from test_torch_checkpointer import KINDS, Training  # noqa: E402
from torch.distributed.checkpoint import default_planner  # noqa: E402
from varve.torch import VarveStorageReader, VarveStorageWriter  # noqa: E402

warnings.filterwarnings("ignore", message="torch.distributed is disabled")


class OneProcessTest(StoreTest):
    def state(self, seed=1):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * seed)
        model(torch.randn(4, 6)).sum().backward()
        optimizer.step()
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": seed,
            "half": torch.randn(3, 4).to(torch.bfloat16),
            "strided": torch.randn(4, 6).T,
            "scalar": torch.tensor(2.5 * seed),
            "empty": torch.zeros(0, 3),
        }

    def save(self, state, step, **options):
        dcp.save(state, storage_writer=VarveStorageWriter(self.path, step=step, **options))

    def test_what_is_saved_is_loaded(self):
        state, other = self.state(1), self.state(2)
        self.save(state, 100, metrics={"loss": 1.5}, tags="good")
        dcp.load(other, storage_reader=VarveStorageReader(self.path))
        for key in state["model"]:
            self.assertTrue(torch.equal(state["model"][key], other["model"][key]), key)
        for index, of_parameter in state["optimizer"]["state"].items():
            for key, value in of_parameter.items():
                found = other["optimizer"]["state"][index][key]
                self.assertTrue(torch.equal(value, found), (index, key))
        self.assertEqual(other["optimizer"]["param_groups"], state["optimizer"]["param_groups"])
        self.assertEqual(other["epoch"], 1)
        for key in ("half", "strided", "scalar", "empty"):
            self.assertTrue(torch.equal(state[key], other[key]), key)
        with varve.open(self.path) as store:
            step = store["good"]
            self.assertEqual((step.step, step.metrics), (100, {"loss": 1.5}))
            self.assertTrue(torch.equal(step["model.0.weight"].torch(), state["model"]["0.weight"]))

    def test_rounded_copies_are_found_and_not_stored(self):
        masters = {f"master.{i}": torch.randn(300, 200) for i in range(3)}
        others = {f"exp_avg.{i}": torch.randn(300, 200) for i in range(3)}
        copies = {f"model.{i}": masters[f"master.{i}"].to(torch.bfloat16) for i in range(3)}
        # Two that seem to be copies at the places that are looked at, but are none.
        copies["model.1"][17, 100] += 1.0
        copies["model.2"] = copies["model.2"].reshape(200, 300)
        copies["model.zeros"] = torch.zeros(300, 200, dtype=torch.bfloat16)
        state = {**copies, **masters, **others}
        self.save(state, 1)
        other = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        dcp.load(other, storage_reader=VarveStorageReader(self.path))
        for name, tensor in state.items():
            self.assertTrue(torch.equal(tensor, other[name]), name)
        with varve.open(self.path) as store:
            found = {name: tensor.derived_from for name, tensor in store[1].items()}
        wanted = {name: "" for name in state}
        wanted.update({"model.0": "master.0", "model.1": "master.1"})
        self.assertEqual(found, wanted)

    def test_a_resumed_training_has_the_losses_of_one_that_was_not_stopped(self):
        def state_of(training):
            state = {name: part.state_dict() for name, part in training.parts().items()}
            generators = {
                "torch": torch.get_rng_state(),
                "python": random.getstate(),
                "numpy": np.random.get_state(),
            }
            return {**state, **generators}

        for step, (name, (make_optimizer, options)) in enumerate(KINDS.items()):
            with self.subTest(name):
                first = Training(1, make_optimizer, **options)
                for _ in range(20):
                    first.step()
                self.save(state_of(first), step)
                expected = [first.step() for _ in range(100)]
                second = Training(2, make_optimizer, **options)
                second.step()  # so that there is state to load into
                state = state_of(second)
                dcp.load(state, storage_reader=VarveStorageReader(self.path))
                for part, of_part in second.parts().items():
                    of_part.load_state_dict(state[part])
                torch.set_rng_state(state["torch"])
                random.setstate(state["python"])
                np.random.set_state(state["numpy"])
                self.assertEqual([second.step() for _ in range(100)], expected)

    def test_ids_name_path_and_step(self):
        for step in (1, 2):
            dcp.save(
                self.state(step),
                storage_writer=VarveStorageWriter(),
                checkpoint_id=f"varve://{self.path}@{step}",
            )
        for expression, expected in (("1", 1), ("2", 2), ("latest", 2)):
            state = {"epoch": 0}
            dcp.load(
                state,
                storage_reader=VarveStorageReader(),
                checkpoint_id=f"varve://{self.path}@{expression}",
            )
            self.assertEqual(state["epoch"], expected)
        self.assertTrue(VarveStorageWriter.validate_checkpoint_id("varve://a@1"))
        self.assertFalse(VarveStorageReader.validate_checkpoint_id(self.path))

    def test_async_save(self):
        state = self.state()
        writer = VarveStorageWriter(self.path, step=3)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            dcp.async_save(state, storage_writer=writer).result()
        finally:
            dist.destroy_process_group()
        loaded = self.state(2)
        dcp.load(loaded, storage_reader=VarveStorageReader(self.path, step=3))
        self.assertTrue(torch.equal(loaded["half"], state["half"]))

    def test_steps_of_others_and_the_planner_of_torch(self):
        with self.open() as store:
            store.save(5, {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
        state = {"w": torch.zeros(2, 3)}
        dcp.load(state, storage_reader=VarveStorageReader(self.path, step=5))
        self.assertEqual(state["w"].flatten().tolist(), list(range(6)))
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

        self.path = self.folder / "nested"
        self.save({"a": {"b": [torch.ones(2), {"c": 5}]}}, 1)
        found = {}
        _load_state_dict(
            found,
            storage_reader=VarveStorageReader(self.path),
            planner=default_planner._EmptyStateDictLoadPlanner(),
            no_dist=True,
        )
        self.assertEqual(found["a"]["b"][1]["c"], 5)
        self.assertEqual(found["a"]["b"][0].tolist(), [1, 1])

    def test_a_commit_in_the_background_that_fails_is_logged(self):
        with self.open() as store:
            step = store.save(5)
            step.abandon()
            attempt = varve.torch.dcp._Attempt(store, step, "rank 3 did not save step 5")
            with self.assertLogs("varve", "ERROR") as logged:
                attempt.commit_in_background()
                attempt.end()
        self.assertRegex(logged.output[0], "rank 3 did not save step 5: the save is over")

    def test_what_is_wrong_is_said_and_nothing_is_visible(self):
        def fails(pattern, call):
            with self.assertRaises(BaseException) as caught:
                call()
            self.assertRegex(str(caught.exception), pattern)

        good = {"a": torch.ones(3)}
        fails(
            "path and a step", lambda: dcp.save(good, storage_writer=VarveStorageWriter(self.path))
        )
        fails("complex128", lambda: self.save({"a": torch.ones(2, dtype=torch.complex128)}, 1))
        with varve.open(self.path) as store:
            self.assertEqual(store.runs(), [])
        self.save(good, 1)
        fails("exists already", lambda: self.save(good, 1))
        self.save({"a": torch.zeros(3)}, 1, on_existing="replace")
        reader = VarveStorageReader(self.path, step=9)
        fails("9", lambda: dcp.load(good, storage_reader=reader))
        fails("9", lambda: reader.read_metadata(rank=0))
        fails("b", lambda: dcp.load({"b": good["a"]}, storage_reader=VarveStorageReader(self.path)))
        if "Size mismatch" in inspect.getsource(default_planner):  # not before torch 2.5
            other = {"a": torch.ones(4)}
            fails(
                "Size mismatch",
                lambda: dcp.load(other, storage_reader=VarveStorageReader(self.path)),
            )
        plain = self.folder / "plain"
        with varve.open(plain, "a") as store:
            store.save(1, {"a": np.ones(1)})
        writer = VarveStorageWriter(plain, step=2)
        fails("store of one process", lambda: dcp.save(good, storage_writer=writer))
        with varve.open(self.path) as store:
            self.assertEqual(store[1]["a"][...].tolist(), [0, 0, 0])

    def test_an_attempt_without_finish_leaves_nothing(self):
        writer = VarveStorageWriter(self.path, step=1)
        writer.finish = lambda metadata, results: None
        dcp.save({"a": torch.ones(3)}, storage_writer=writer)
        with varve.open(self.path) as store:
            self.assertEqual(store.runs(), [])
        self.save({"a": torch.zeros(3)}, 1)
        with varve.open(self.path) as store:
            self.assertEqual(store[1]["a"][...].tolist(), [0, 0, 0])


# Many processes. What follows up to run() is also the program of a rank.


def sharded_state(size, seed):
    """What FSDP and others give: uneven rows, columns, a rank without rows, replicas."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (size,))
    random = torch.Generator().manual_seed(seed)

    def cut(shape, placement, dtype=torch.float32):
        value = torch.randn(shape, generator=random).to(dtype)
        return distribute_tensor(value, mesh, [placement])

    return {
        "model": {
            "rows": cut((7, 5), Shard(0)),
            "columns": cut((4, 9), Shard(1), torch.bfloat16),
            "one_row": cut((1, 3), Shard(0)),
            "replicated": cut((3, 2), Replicate()),
            "plain": torch.randn(6, generator=random),
        },
        "optimizer": {"step": torch.tensor(float(seed)), "exp_avg.rows": cut((7, 5), Shard(0))},
        "epoch": seed,
    }


def whole(state):
    """All tensors by name, as the ranks have them together."""
    flat = {f"{key}.{name}": v for key in ("model", "optimizer") for name, v in state[key].items()}
    return {n: v.full_tensor() if hasattr(v, "full_tensor") else v for n, v in flat.items()}


class DyingWriter(VarveStorageWriter):
    """Dies on the ranks and in the calls that `dies` names."""

    def __init__(self, dies, rank, *args, **options):
        super().__init__(*args, **options)
        self.dies, self.rank = dies, rank

    def write_data(self, plan, planner):
        if self.dies == f"write_data {self.rank}":
            os._exit(9)
        if self.dies == f"raise {self.rank}":
            raise ValueError(f"rank {self.rank} has no disk")
        if self.dies == f"commit {self.rank}":  # when the results have been gathered

            def die(_attempt):
                threading.Timer(1, os._exit, (9,)).start()

            varve.torch.dcp._Attempt.commit_in_background = die
        return super().write_data(plan, planner)

    def finish(self, metadata, results):
        if self.dies == f"finish {self.rank}":
            os._exit(9)
        super().finish(metadata, results)


def rank_program(folder, rank, size, tasks):
    connect(folder, rank, size)
    path = f"{folder}/root"
    for task in tasks:
        kind, _, argument = task.partition(":")
        if kind == "save":
            state = sharded_state(size, int(argument))
            dcp.save(state, storage_writer=VarveStorageWriter(path, step=int(argument)))
            expected = whole(state)
            if rank == 0:
                torch.save(expected, f"{folder}/expected_{argument}.pt")
        elif kind == "load":
            state = sharded_state(size, 1000)
            dcp.load(state, storage_reader=VarveStorageReader(path, step=int(argument)))
            assert state["epoch"] == int(argument)
            expected = torch.load(f"{folder}/expected_{argument}.pt")
            found = whole(state)
            assert list(found) == list(expected)
            for name, value in expected.items():
                assert torch.equal(found[name], value), name
        elif kind == "safetensors":  # each rank writes files with its chunks
            state = sharded_state(size, int(argument))
            del state["epoch"]  # no value may be in such a folder
            writer = dcp.HuggingFaceStorageWriter(f"{folder}/safetensors", save_distributed=True)
            dcp.save(state, storage_writer=writer)
        else:
            # The others wait so long for the one that dies in the commit. It does so after a second.
            timeout = 20 if kind.startswith("commit") else 60
            writer = DyingWriter(kind, rank, path, step=int(argument), timeout=timeout)
            try:
                dcp.save(sharded_state(size, int(argument)), storage_writer=writer)
            except BaseException as error:
                pathlib.Path(f"{folder}/failed_{rank}").write_text(str(error))
                if not kind.startswith("raise"):
                    os._exit(7)
            else:
                os._exit(8)  # the save of a rank that died has worked
    dist.destroy_process_group()


class ManyProcessesTest(RanksTest):
    program = staticmethod(rank_program)

    def failed(self, rank):
        return (self.folder / f"failed_{rank}").read_text()

    def steps(self):
        with varve.open(self.folder / "root") as store:
            return [info.step for info in store.steps()] if store.runs() else []

    @unittest.skipUnless(hasattr(dcp, "HuggingFaceStorageWriter"), "this torch is too old")
    def test_chunks_in_safetensors_files_are_imported(self):
        self.run_ranks(2, "save:5", "safetensors:5")
        expected = torch.load(self.folder / "expected_5.pt")
        place = self.folder / "safetensors"
        self.assertEqual(len(list(place.glob("shard-*.safetensors"))), 2)
        with self.open() as store:
            store.import_files(place, 5, format="dcp")
            self.assertEqual(set(store[5].keys()), set(expected))
            for name, value in expected.items():
                self.assertTrue(torch.equal(store[5][name].torch(), value), name)
            next(place.glob("shard-00001-*")).unlink()
            with self.assertRaises(varve.InvalidArgumentError) as caught:
                store.import_files(place, 6, format="dcp")
            self.assertIn("its chunks have", str(caught.exception))

    def test_two_ranks(self):
        # An error on one rank, then saves and loads by the same processes.
        self.run_ranks(2, "raise 1:1", "save:1", "save:2", "load:1", "load:2")
        for rank in range(2):
            self.assertIn("rank 1 has no disk", self.failed(rank))
        expected = torch.load(self.folder / "expected_2.pt")
        with varve.open(self.folder / "root") as store:
            self.assertEqual([info.step for info in store.steps()], [1, 2])
            self.assertEqual(store[2]._reader.find("model.rows").num_shards, 2)
            self.assertEqual(set(expected), set(store[2].keys()))
            for name, value in expected.items():
                self.assertTrue(torch.equal(store[2][name].torch(), value), name)
        # Ranks that are killed leave nothing.
        self.run_ranks(2, "write_data 1:3", codes=[7, 9])
        self.run_ranks(2, "finish 0:3", codes=[9, 7])
        self.run_ranks(2, "commit 1:3", codes=[7, 9])
        self.assertEqual(self.steps(), [1, 2])
        # Another number of ranks, and back.
        self.run_ranks(1, "load:2", "save:3")
        self.run_ranks(2, "load:3", "save:4")
        self.assertEqual(self.steps(), [1, 2, 3, 4])


if __name__ == "__main__":
    unittest.main()
