# SPDX-License-Identifier: Apache-2.0
"""FSDP2 and FSDP2 with tensor parallelism over DCP, on four processes that are connected by gloo: what is
saved on four is loaded on others, and what happens when a rank is killed. Skipped where torch is not
installed. VARVE_FULL_SIZE=1 kills each kind of rank 30 times."""

import os
import random
import subprocess
import threading
import time
import unittest

import varve
from support import program, require

require("torch")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from ranks import RanksTest, connect  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from varve.safetensors.torch import load_file  # noqa: E402
from varve.torch import VarveStager, VarveStorageReader, VarveStorageWriter  # noqa: E402

KILLS = 30 if os.environ.get("VARVE_FULL_SIZE") == "1" else 1
VOCABULARY, WIDTH, HIDDEN = 11, 6, 10  # which neither two nor three ranks divide evenly


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, HIDDEN)
        self.down = torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_training(layout, size, seed):
    """A model on all ranks and its optimizer, after a step."""
    torch.manual_seed(seed)
    model = Net()
    if layout == "fsdp":
        mesh = init_device_mesh("cpu", (size,))
    elif layout == "fsdp_tp":
        whole = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
        mesh = whole["dp"]
        for block in model.blocks:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, whole["tp"], plan)
    if layout != "plain":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    loss = model(torch.arange(VOCABULARY)).square().mean()
    loss.backward()
    optimizer.step()
    return model, optimizer


def state_of(model, optimizer, epoch):
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "epoch": epoch}


def whole(value, prefix=""):
    """All tensors by name, as the ranks have them together."""
    if isinstance(value, dict):
        found = {}
        for key, each in value.items():
            found.update(whole(each, f"{prefix}.{key}" if prefix else str(key)))
        return found
    if isinstance(value, torch.Tensor):
        return {prefix: value.full_tensor() if hasattr(value, "full_tensor") else value.clone()}
    return {}


class DyingWriter(VarveStorageWriter):
    """Dies on one rank: in write_data, between write_data and finish, or in finish. `seed` says when."""

    def __init__(self, dies, dying_rank, rank, seed, *args, **options):
        super().__init__(*args, **options)
        self.dies = dies if rank == dying_rank else ""
        self.random = random.Random(seed)

    def _put_all(self, attempt, plan, planner):
        if self.dies == "write_data":
            plan.items[self.random.randrange(len(plan.items)) :] = [Killer()]
        return super()._put_all(attempt, plan, planner)

    def write_data(self, plan, planner):
        future = super().write_data(plan, planner)
        if self.dies == "between":  # while the results go to the coordinator, or before they do
            self.die_later(self.random.choice((0, 0.001, 0.01)))
        return future

    def finish(self, metadata, results):
        if self.dies == "finish":
            self.die_later(self.random.choice((0, 0, 0.001, 0.003, 0.01, 0.03)))
        super().finish(metadata, results)

    def die_later(self, seconds):
        if seconds == 0:
            os._exit(9)
        timer = threading.Timer(seconds, os._exit, (9,))
        timer.daemon = True
        timer.start()
        if self.dies == "between":
            time.sleep(1)


class Killer:
    """Stands for the item at which a rank dies."""

    @property
    def index(self):
        os._exit(9)


def load_foreign(path, step, size):
    """Loads a step of C++ ranks into shards of these ranks, by rows."""
    mesh = init_device_mesh("cpu", (size,))
    with varve.open(path) as store:
        expected = store[step].load(framework="torch")
    state = {
        name: distribute_tensor(
            torch.zeros_like(value), mesh, [Shard(0) if value.dim() else Replicate()]
        )
        for name, value in expected.items()
    }
    dcp.load(state, storage_reader=VarveStorageReader(path, step=step))
    for name, value in expected.items():
        assert torch.equal(state[name].full_tensor(), value), name


def rank_program(folder, rank, size, tasks):
    connect(folder, rank, size)
    path = f"{folder}/root"
    for task in tasks:
        kind, step, *rest = task.split(":")
        step = int(step)
        if kind == "die":
            dies, dying_rank, seed = rest[0], int(rest[1]), int(rest[2])
            state = state_of(*make_training("fsdp", size, step), step)
            writer = DyingWriter(dies, dying_rank, rank, seed, path, step=step, timeout=60)
            try:
                dcp.save(state, storage_writer=writer)
            except BaseException:
                os._exit(7)
            os._exit(0)  # the save was over before the rank died
        if kind == "foreign":
            load_foreign(rest[0], step, size)
            continue
        layout = rest[0]
        training = make_training(layout, size, step if kind != "load" else 1000)
        state = state_of(*training, step)
        if kind == "save":
            dcp.save(state, storage_writer=VarveStorageWriter(path, step=step))
        elif kind == "async":
            stager = VarveStager()
            for offset in range(2):
                state["epoch"] = step + offset
                writer = VarveStorageWriter(path, step=step + offset)
                dcp.async_save(state, storage_writer=writer, async_stager=stager).result()
                while not stager._pool[0].is_free():  # the threads of the save are about to end
                    time.sleep(0.01)
            assert stager.last_copied_bytes == 0  # as no tensor had changed
            stager.close()
        if kind in ("save", "async"):
            expected = whole(state)
            if rank == 0:
                torch.save(expected, f"{folder}/expected_{step}.pt")
        else:
            state["epoch"] = 0
            dcp.load(state, storage_reader=VarveStorageReader(path, step=step))
            assert state["epoch"] == step
            set_state_dict(
                *training,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            expected = torch.load(f"{folder}/expected_{step}.pt")
            found = whole(state_of(*training, step))
            assert list(found) == list(expected)
            for name, value in expected.items():
                assert torch.equal(found[name], value), name
    dist.destroy_process_group()


class ReshardTest(RanksTest):
    program = staticmethod(rank_program)

    def test_saved_on_four_and_loaded_on_others(self):
        self.run_ranks(4, "save:1:fsdp", "save:2:fsdp_tp", "async:3:fsdp_tp")
        steps = {1: "fsdp", 2: "fsdp_tp", 3: "fsdp_tp"}
        with varve.open(self.folder / "root") as store:
            for step in steps:
                expected = torch.load(self.folder / f"expected_{step}.pt")
                checkpoint = store[step]
                self.assertEqual(set(checkpoint.keys()), set(expected))
                for name, value in expected.items():
                    self.assertTrue(torch.equal(checkpoint[name].torch(), value), name)
                found = checkpoint._reader.find("model.blocks.0.up.weight")
                self.assertEqual(found.num_shards, 4, step)
        loads = {
            1: ("plain", "fsdp"),
            2: ("fsdp", "fsdp_tp"),
            3: ("fsdp",),
            4: ("fsdp", "fsdp_tp"),
        }
        for size, layouts in loads.items():
            tasks = [f"load:{step}:{layout}" for step in steps for layout in layouts]
            self.run_ranks(size, *tasks)
        # And back: what fewer ranks have saved is loaded on four.
        self.run_ranks(3, "save:10:fsdp")
        self.run_ranks(1, "save:11:plain")
        self.run_ranks(4, *(f"load:{s}:{layout}" for s in (10, 11) for layout in loads[4]))
        self.check_with_the_command()

    def check_with_the_command(self):
        out = self.folder / "exported.safetensors"
        command = [program("varve"), "-s", self.folder / "root", "export", "2", "-o", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        expected = torch.load(self.folder / "expected_2.pt")
        found = load_file(out)
        self.assertEqual(set(found), set(expected))
        for name, value in expected.items():
            self.assertTrue(torch.equal(found[name], value), name)

    def test_ranks_of_cpp_save_and_ranks_of_torch_load(self):
        path = self.folder / "cpp"
        command = [
            program("gpt_train"),
            "--spawn",
            "8",
            "--tp",
            "2",
            "--pp",
            "2",
            "--zero",
            "--train-iters",
            "2",
        ]
        command += ["--save", path, "--save-interval", "2", "--hidden-size", "32"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.run_ranks(3, f"foreign:2:{path}")


class KilledRanksTest(RanksTest):
    program = staticmethod(rank_program)

    def test_a_killed_rank_leaves_nothing_and_takes_nothing(self):
        step = 0
        seeds = random.Random(17)
        for dies in ("write_data", "between", "finish"):
            for number in range(KILLS):
                rank = 0 if dies == "finish" else seeds.randrange(4)
                seed = seeds.randrange(1 << 30)
                with self.subTest(dies, number=number, rank=rank, seed=seed):
                    step += 2
                    codes = [(0, 7)] * 4 if dies == "finish" else [7] * 4
                    codes[rank] = 9 if dies != "finish" else (0, 9)
                    tasks = (f"save:{step}:fsdp", f"die:{step + 1}:{dies}:{rank}:{seed}")
                    self.run_ranks(4, *tasks, codes=codes)
                    self.check_steps(step, may_be_there=dies == "finish")
        self.run_ranks(4, f"load:{step}:fsdp")

    def check_steps(self, step, may_be_there):
        """All steps before are there, and the one during which a rank died is whole or not there."""
        with varve.open(self.folder / "root") as store:
            steps = [info.step for info in store.steps()]
            self.assertIn(steps[-1], (step, step + 1) if may_be_there else (step,))
            self.assertEqual([s for s in steps if s % 2 == 0], list(range(2, step + 1, 2)))
            report = store.check(read_data=True)
            self.assertEqual(report.errors, [])
            expected = torch.load(self.folder / f"expected_{step}.pt")
            for name, value in expected.items():
                self.assertTrue(torch.equal(store[step][name].torch(), value), name)
            self.assertEqual(set(store[steps[-1]].keys()), set(expected))


if __name__ == "__main__":
    unittest.main()
