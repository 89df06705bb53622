# SPDX-License-Identifier: Apache-2.0
"""Processes that have imported torch already, and tests of many that are connected by gloo."""

import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import runpy
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from support import StoreTest

try:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError:  # before torch 2.5
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor

__all__ = ["RanksTest", "Replicate", "Shard", "connect", "distribute_tensor", "run_script"]

IMPORTED_BY = os.getpid()


def fork_context():
    """Makes processes that are forked from one that has imported torch and the tests of ranks, and has opened
    no store. To import torch.distributed takes a process seconds.
    """
    context = multiprocessing.get_context("forkserver")
    of_tests = sorted({each.__module__ for each in RanksTest.__subclasses__()})
    # The first DTensor of a process imports torch._dynamo.
    of_torch = [
        "torch.distributed.checkpoint.state_dict",
        "torch.distributed.fsdp",
        "torch._dynamo",
    ]
    context.set_forkserver_preload(["ranks", "varve.torch", *of_torch, *of_tests])
    before = os.environ.get("PYTHONPATH")
    # The fork server of Python 3.11 does not know sys.path, and skips a module that it does not find.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def check_forked():
    assert os.getppid() == IMPORTED_BY, "the fork server has not imported what this process needs"


def script_program(script, arguments, folder):
    check_forked()
    for descriptor in (1, 2):
        with open(f"{folder}/{descriptor}", "w") as file:
            os.dup2(file.fileno(), descriptor)
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


def run_script(script, *arguments):
    """Runs a script of Python in a process of its own, as `python SCRIPT` does.

    Returns its exit code, what it printed, and what it said on its standard error.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = (str(script), [str(each) for each in arguments], folder)
        process = fork_context().Process(target=script_program, args=arguments)
        process.start()
        process.join()
        texts = [pathlib.Path(folder, name).read_text() for name in ("1", "2")]
    return process.exitcode, *texts


def connect(folder, rank, size):
    """What the program of a rank calls first."""
    check_forked()
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
        context = fork_context()
        ranks = [
            context.Process(target=type(self).program, args=(str(self.folder), rank, size, tasks))
            for rank in range(size)
        ]
        for rank in ranks:
            rank.start()
        end = time.monotonic() + 250
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
