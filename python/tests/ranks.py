# SPDX-License-Identifier: Apache-2.0
"""Tests of many processes that are connected by gloo."""

import multiprocessing
import os
import time

import torch
import torch.distributed as dist
from support import StoreTest

try:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError:  # before torch 2.5
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor

__all__ = ["RanksTest", "Replicate", "Shard", "connect", "distribute_tensor"]


def connect(folder, rank, size):
    """What the program of a rank calls first."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)


class RanksTest(StoreTest):
    """`program(folder, rank, size, tasks)` is what each rank runs."""

    program = None

    def run_ranks(self, size, *tasks, codes=None):
        """Runs a program on each rank. They exit with `codes`, or with 0 on each."""
        for name in ("meet", *(f"failed_{rank}" for rank in range(size))):
            (self.folder / name).unlink(missing_ok=True)
        # Its processes are forked from one that has imported torch, and has opened no store.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([type(self).program.__module__])
        ranks = [
            context.Process(target=type(self).program, args=(str(self.folder), rank, size, tasks))
            for rank in range(size)
        ]
        for rank in ranks:
            rank.start()
        end = time.monotonic() + 120
        for rank in ranks:
            rank.join(max(0, end - time.monotonic()))
        found = [rank.exitcode for rank in ranks]
        for rank in ranks:
            rank.kill()
        if codes is None:
            codes = [0] * size
        self.assertEqual(len(found), len(codes))
        for code, allowed in zip(found, codes, strict=True):
            self.assertIn(code, allowed if isinstance(allowed, tuple) else (allowed,), found)
