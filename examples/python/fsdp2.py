# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on several processes with FSDP2. Any number of processes goes on from what others saved,
with the losses that they would have had, but for rounding.

python fsdp2.py FOLDER [--ranks 4] [--steps N] [--text FILE]

The processes are connected by gloo and need no GPU. torchrun can start them, too.
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import varve
from gpt_model import GPT, loss_of, read_text
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BATCH = 12  # of all ranks together, which 1, 2, 3 and 4 divide
SAVE_EVERY = 5


def newest_step(folder):
    if not os.path.exists(folder):
        return None
    with varve.open(folder) as store:
        return store["latest"].step if "latest" in store else None


def train(folder, num_steps, text):
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = GPT()
    mesh = init_device_mesh("cpu", (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def state():
        of_model, of_optimizer = get_state_dict(model, optimizer)
        return {"model": of_model, "optimizer": of_optimizer}

    start = newest_step(folder)
    if start is not None:
        loaded = state()
        dcp.load(loaded, storage_reader=varve.torch.VarveStorageReader(folder, step=start))
        set_state_dict(
            model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
        )
    stager = varve.torch.VarveStager()  # keeps its copy of the state from save to save
    saving = None
    for step in range(0 if start is None else start + 1, num_steps):
        torch.manual_seed(step)  # all ranks draw the same batch, however many they are
        loss = loss_of(model, text, BATCH, model.context, rank, size)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item()!r}", flush=True)
        if step % SAVE_EVERY == SAVE_EVERY - 1 or step == num_steps - 1:
            if saving is not None:
                saving.result()
            writer = varve.torch.VarveStorageWriter(
                folder, step=step, metrics={"loss": mean.item()}
            )
            saving = dcp.async_save(state(), storage_writer=writer, async_stager=stager)
    if saving is not None:
        saving.result()
    stager.close()


def run_rank(rank, size, meeting, options):
    torch.set_num_threads(1)
    if meeting is None:
        dist.init_process_group("gloo")  # with torchrun's variables
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    train(options.folder, options.steps, read_text(options.text))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--text", help="a file of text. Without it, the pages of this repository")
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(0, 0, None, options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            meeting = f"file://{folder}/meeting"
            # Forked, so that torch is imported once. This process has opened no store and started no thread.
            torch.multiprocessing.start_processes(
                run_rank, (options.ranks, meeting, options), options.ranks, start_method="fork"
            )
