# SPDX-License-Identifier: Apache-2.0
"""Compares varve in Python with what people use: safetensors, torch.save and torch.distributed.checkpoint.

    PYTHONPATH=build/release/python python bench/peers.py

It trains a small GPT for some steps, or takes --state FILES, and then measures in rounds. Each round runs
every subject once, after everything written before has reached the disk. The first round is thrown away.
The printed numbers are medians. bench/README.md defines each row.
"""

import argparse
import contextlib
import gc
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import varve
import varve.torch
from bench_table import ms, row
from comparison import states

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHUNK = 1 << 20
PERCENTS = (0, 1, 100)


def train(num_steps, quick):
    """Two states of a training, one step apart: BF16 weights, FP32 masters and moments."""
    size = (
        {"width": 64, "layers": 2}
        if quick
        else {"width": 512, "layers": 6, "heads": 8, "context": 128}
    )
    return list(states.train(size, 4, num_steps, (0, 1)))


def load_states(files, mib):
    """The same of two safetensors files, repeated until they have so many MiB."""
    pair = [safetensors.torch.load_file(file) for file in (files[0], files[-1])]
    copies = -(-(mib << 20) // sum(tensor.nbytes for tensor in pair[0].values()))
    return [
        {
            f"{name.partition('.')[0]}.{copy}.{name.partition('.')[2]}": tensor.roll(7919 * copy)
            for copy in range(copies)
            for name, tensor in state.items()
        }
        for state in pair
    ]


class Peer:
    """The same work in C++, in a process of its own."""

    def __init__(self, program, folder, states):
        files = []
        for i, state in enumerate(states):
            files.append(folder / f"state_{i}.safetensors")
            safetensors.torch.save_file(state, files[-1])
        self._process = subprocess.Popen(
            [program, folder, *files], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, command):
        """Milliseconds and stored bytes."""
        print(command, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().split()
        if len(answer) != 2:
            sys.exit(f"peers: python_peer ended at {command!r}")
        return float(answer[0]), int(answer[1])

    def close(self):
        self._process.stdin.close()
        self._process.wait()


class Bench:
    def __init__(self, options, folder, states):
        self.folder = folder
        self.state, self.next = states
        self.other = {name: torch.zeros_like(tensor) for name, tensor in self.state.items()}
        self.bytes = sum(tensor.nbytes for tensor in self.state.values())
        self.samples = {}
        self.changes = 0
        self.round = 0
        self.number = 0
        self.peer = None
        program = options.bin / "python_peer"
        if program.exists():
            self.peer = Peer(program, folder, states)
        names = [name for name in self.state if name.startswith("exp_avg_sq.")]
        self.one = sorted(names, key=lambda name: self.state[name].nbytes)[len(names) * 3 // 4]
        self.holder = torch.nn.Module()
        self.optimizer = self.make_optimizer()
        side = 1024
        self.matrix = torch.randn(side, side)
        self.products = 1
        for _ in range(3):
            seconds = self.seconds(self.compute)
            self.products = max(1, round(self.products * options.step_seconds / seconds))

    def make_optimizer(self):
        """A model and its AdamW on the masters and moments of the state."""
        self.parameters = {}
        for name, tensor in self.state.items():
            if name.startswith("master."):
                plain = name.removeprefix("master.")
                self.parameters[plain] = torch.nn.Parameter(tensor)
                self.holder.register_parameter(plain.replace(".", "_"), self.parameters[plain])
        optimizer = torch.optim.AdamW(self.parameters.values())
        for name, parameter in self.parameters.items():
            optimizer.state[parameter] = {
                "step": torch.tensor(60.0),
                "exp_avg": self.state[f"exp_avg.{name}"],
                "exp_avg_sq": self.state[f"exp_avg_sq.{name}"],
            }
        return optimizer

    # How everything is measured

    def seconds(self, call):
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def settle(self):
        """Lets the disk and the threads of torch come to rest.

        Those of its OpenMP wait busily for a while after an operation, which is the work of no subject.
        """
        os.sync()
        gc.collect()
        time.sleep(0.05)

    def measure(self, name, call):
        self.settle()
        milliseconds = 1e3 * self.seconds(call)
        self.note(name, milliseconds)
        return milliseconds

    def note(self, name, value):
        self.samples.setdefault(name, []).append(value)

    def ask(self, name, command):
        if self.peer is None:
            return 0
        self.settle()
        milliseconds, stored = self.peer.ask(command)
        if name is not None:
            self.note(name, milliseconds)
        return stored

    def median(self, name):
        return statistics.median(self.samples[name])

    def path(self, what):
        self.number += 1
        return self.folder / f"{what}_{self.number}"

    @contextlib.contextmanager
    def place(self, what):
        path = self.path(what)
        yield path
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    def compute(self):
        for _ in range(self.products):
            torch.mm(self.matrix, self.matrix)

    def change(self, percent):
        """As python_peer changes its state."""
        self.changes += 1
        with torch.no_grad():
            if percent == 100:
                for name, tensor in self.state.items():
                    held = tensor.clone()
                    tensor.copy_(self.next[name])
                    self.next[name].copy_(held)
            if percent != 1:
                return
            left = -(-(self.bytes // CHUNK) // 100)
            for name, tensor in self.state.items():
                if left and name.startswith("exp_avg.") and tensor.nbytes >= CHUNK:
                    noise = torch.from_numpy(
                        np.random.default_rng([self.changes, left])
                        .integers(0, 2**32, CHUNK // 4, np.uint32)
                        .view(np.float32)
                    )
                    tensor.view(-1)[: CHUNK // 4].copy_(noise)
                    left -= 1

    # The subjects

    def put(self, store, step):
        with store.save(step) as begun:
            for name, tensor in self.state.items():
                kind, _, rest = name.partition(".")
                master = f"master.{rest}" if kind == "model" else ""
                begun.put(name, tensor, derived_from=master if master in self.state else "")
        return begun.report

    def save_round(self):
        # Each is the first in every other round, as a disk is slower after much was written.
        parts = [self.python_saves, self.cpp_saves]
        for part in parts if self.round % 2 else reversed(parts):
            part()

    def python_saves(self):
        # varve writes the state for the first time, then as it was, then with 1 % and all of it changed.
        with self.place("varve") as path, varve.open(path, "w") as store:
            reports = []
            self.measure("varve first", lambda: reports.append(self.put(store, 1)))
            self.measure("varve load", lambda: store[1].load(out=self.other))
            self.measure("varve unchanged", lambda: self.put(store, 2))
            self.change(1)
            self.measure("varve 1 %", lambda: self.put(store, 3))
            self.change(100)
            self.measure("varve 100 %", lambda: reports.append(self.put(store, 4)))
            self.note("varve share", reports[0].stored_bytes / self.bytes)
            self.note("varve step share", reports[1].stored_bytes / self.bytes)
            self.measure("varve delta load", lambda: store[4].load(out=self.other))

            def one():
                with varve.open(path) as reader:
                    reader["latest"].read(self.one, out=self.other[self.one])

            self.measure("varve one", one)

    def cpp_saves(self):
        self.ask(None, "new")
        self.ask("C++ first", "save 1")
        self.ask("C++ load", "load 1")
        self.ask("C++ unchanged", "save 2")
        self.ask("digest", "digest")
        self.ask(None, "change 1")
        self.ask("C++ 1 %", "save 3")
        self.ask(None, "change 100")
        self.ask("C++ 100 %", "save 4")

    def file_round(self):
        with self.place("safetensors") as path:

            def save():
                safetensors.torch.save_file(self.state, path)
                flush(path)

            self.measure("safetensors first", save)
            self.measure("safetensors load", lambda: safetensors.torch.load_file(path))
        with self.place("torch") as path:

            def torch_save():
                torch.save(self.state, path)
                flush(path)

            self.measure("torch first", torch_save)
            self.measure("torch load", lambda: torch.load(path))

    def dcp_round(self):
        with self.place("dcp") as path:
            self.measure("dcp first", lambda: dcp.save(self.state, checkpoint_id=path))
            self.measure("dcp load", lambda: dcp.load(self.other, checkpoint_id=path))
            one = {self.one: self.other[self.one]}
            self.measure("dcp one", lambda: dcp.load(one, checkpoint_id=path))
        with self.place("plug-in") as path:

            def save(step):
                writer = varve.torch.VarveStorageWriter(path, step=step)
                dcp.save(self.state, storage_writer=writer)

            def load(state):
                dcp.load(state, storage_reader=varve.torch.VarveStorageReader(path))

            self.measure("plug-in first", lambda: save(1))
            self.measure("plug-in load", lambda: load(self.other))
            self.measure("plug-in one", lambda: load(one))
            self.measure("plug-in unchanged", lambda: save(2))

    def stall_round(self):
        os.sync()
        self.note("step alone", 1e3 * self.seconds(self.compute))
        with (
            self.place("hooks") as path,
            varve.torch.Checkpointer(path) as ckpt,
            self.place("async") as beside,
        ):
            ckpt.restore(model=self.holder, optimizer=self.optimizer)
            ckpt.after_step(0)
            ckpt.wait()
            self.ask(None, "hooks")
            self.ask(None, "begin 0")
            self.ask(None, "await")
            self.ask(None, "wait")
            for step, percent in enumerate(PERCENTS, start=1):
                self.change(percent)
                os.sync()
                gc.collect()
                stall = self.seconds(lambda step=step: ckpt.after_step(step))
                computed = self.seconds(self.compute)
                waited = self.seconds(ckpt.before_optimizer_step)
                self.note(f"varve after_step {percent}", 1e3 * stall)
                self.note(f"varve stall {percent}", 1e3 * (stall + waited))
                self.note(f"varve step {percent}", 1e3 * computed)
                ckpt.wait()
                if self.peer is not None:
                    self.ask(None, f"change {percent}")
                    os.sync()
                    stall = self.peer.ask(f"begin {step}")[0]
                    self.compute()
                    self.note(f"C++ stall {percent}", stall + self.peer.ask("await")[0])
                    self.ask(None, "wait")
            self.async_round(beside)

    def async_round(self, path):
        """dcp.async_save, which copies the state before it returns, and torch.save."""
        state = {f"p.{name}": parameter for name, parameter in self.parameters.items()}
        for index, of_parameter in enumerate(self.optimizer.state.values()):
            state.update((f"{key}.{index}", value) for key, value in of_parameter.items())
        os.sync()
        gc.collect()
        future = None

        def begin():
            nonlocal future
            future = dcp.async_save(state, checkpoint_id=path)

        self.note("dcp stall", 1e3 * self.seconds(begin))
        self.note("dcp step", 1e3 * self.seconds(self.compute))
        future.result()
        with self.place("torch") as file:
            self.measure("torch stall", lambda: torch.save(state, file))


def flush(path):
    for each in (path, path.parent):
        descriptor = os.open(each, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def ratio_row(bench, what, subject, baseline, limit):
    """The median of the ratios of the rounds."""
    pairs = zip(bench.samples[subject], bench.samples[baseline], strict=True)
    ratio = statistics.median(a / b for a, b in pairs)
    measured = f"{ratio:.2f} x ({ms(bench.median(subject))}, {ms(bench.median(baseline))})"
    return row(what, f"<= {limit} x {baseline}", measured, ratio <= limit)


def overhead_row(bench, what, subject, baseline):
    pairs = list(zip(bench.samples[subject], bench.samples[baseline], strict=True))
    extra = statistics.median(a - b for a, b in pairs)
    ratio = statistics.median(a / b for a, b in pairs)
    measured = f"{100 * (ratio - 1):+.1f} %, {extra:+.2f} ms ({ms(bench.median(subject))})"
    return row(what, "<= C++ + 5 % or + 3 ms", measured, ratio <= 1.05 or extra <= 3)


def info_row(bench, what, subject):
    return row(what, "no target", ms(bench.median(subject)), verdict="for information")


def save_rows(bench):
    yield row("3  durable, first save", "", "", verdict="")
    yield ratio_row(bench, "  Store.save", "varve first", "safetensors first", 1.1)
    yield ratio_row(bench, "  Store.save", "varve first", "dcp first", 0.75)
    yield ratio_row(bench, "  Store.save", "varve first", "torch first", 1.0)
    yield ratio_row(bench, "  VarveStorageWriter", "plug-in first", "dcp first", 0.75)
    share = bench.median("varve share")
    yield row("  stored bytes", "<= 0.715 of the state", f"{share:.3f}", round(share, 3) <= 0.715)
    yield row(
        "  stored bytes, a step later",
        "no target",
        f"{bench.median('varve step share'):.3f}",
        verdict="for information",
    )
    if bench.peer is not None:
        yield ratio_row(bench, "3  durable, unchanged", "varve unchanged", "digest", 1.5)
    yield info_row(bench, "   1 % changed", "varve 1 %")
    yield info_row(bench, "   100 % changed", "varve 100 %")
    yield info_row(bench, "   VarveStorageWriter, unchanged", "plug-in unchanged")
    yield row("3  load into existing tensors", "", "", verdict="")
    yield ratio_row(bench, "  Checkpoint.load", "varve load", "dcp load", 0.5)
    yield ratio_row(bench, "  Checkpoint.load", "varve load", "torch load", 1.0)
    yield info_row(bench, "  safetensors load_file, new tensors", "safetensors load")
    yield info_row(bench, "  Checkpoint.load of deltas", "varve delta load")
    yield ratio_row(bench, "  VarveStorageReader", "plug-in load", "dcp load", 0.5)
    yield ratio_row(bench, "3  one tensor, open included", "varve one", "dcp one", 0.5)
    yield ratio_row(bench, "  VarveStorageReader", "plug-in one", "dcp one", 0.5)


def overhead_rows(bench):
    if bench.peer is None:
        yield row("4  Python over C++", "<= 5 % or 3 ms", "", verdict="not run: no python_peer")
        return
    for what in ("first", "unchanged", "1 %", "100 %", "load"):
        yield overhead_row(bench, f"4  Python over C++: {what}", f"varve {what}", f"C++ {what}")
    for percent in PERCENTS:
        yield overhead_row(
            bench,
            f"4  Python over C++: stall, {percent} %",
            f"varve stall {percent}",
            f"C++ stall {percent}",
        )


def stall_rows(bench):
    for percent in PERCENTS:
        name = f"varve stall {percent}"
        yield ratio_row(
            bench, f"5  stall of after_step, {percent} % changed", name, "dcp stall", 1.0
        )
        yield ratio_row(bench, "   the same", name, "torch stall", 1.0)
        yield info_row(bench, "   of it after_step itself", f"varve after_step {percent}")
    yield info_row(bench, "5  a step that computes, alone", "step alone")
    for percent in PERCENTS:
        yield info_row(bench, f"   while varve saves, {percent} %", f"varve step {percent}")
    yield info_row(bench, "   while dcp.async_save saves", "dcp step")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", nargs="+", type=pathlib.Path, help="safetensors files")
    parser.add_argument("--mib", type=int, default=240, help="size of what --state is repeated to")
    parser.add_argument("--train-steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=8, help="an even number")
    parser.add_argument("--dir", type=pathlib.Path, default=ROOT / "build/bench-stores")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument(
        "--step-seconds",
        type=float,
        default=0.5,
        help="of the computation between after_step and the optimizer",
    )
    parser.add_argument("--quick", action="store_true", help="a tiny state: a smoke test")
    parser.add_argument("--json", type=pathlib.Path, help="where all samples go")
    parser.add_argument("--only", default="save,file,dcp,stall", help="parts of a round")
    options = parser.parse_args()
    if options.quick:
        options.train_steps, options.rounds, options.step_seconds = 2, 1, 0.02
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    options.dir.mkdir(parents=True, exist_ok=True)
    pair = (
        load_states(options.state, options.mib)
        if options.state
        else train(options.train_steps, options.quick)
    )
    with tempfile.TemporaryDirectory(prefix="peers_", dir=options.dir) as folder:
        bench = Bench(options, pathlib.Path(folder), pair)
        size = f"{bench.bytes / 1e6:.0f} MB, {len(bench.state)} tensors"
        print(f"{size}; torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()}")
        for number in range(options.rounds + 1):
            if number == 1:
                bench.samples.clear()  # the first round warms everything up
            bench.round = number
            for part in options.only.split(","):
                getattr(bench, f"{part}_round")()
        if bench.peer is not None:
            bench.peer.close()
    dist.destroy_process_group()
    makers = {"save": save_rows, "overhead": overhead_rows, "stall": stall_rows}
    print("| what | target | measured | |\n|---|---|---|---|")
    faults = 0
    for make in makers.values():
        with contextlib.suppress(KeyError):  # a part that was not run
            for each in make(bench):
                faults += each["met"] is False
                print("| {what} | {target} | {measured} | {verdict} |".format(**each))
    spread = {
        name: {"median": statistics.median(values), "min": min(values), "max": max(values)}
        for name, values in sorted(bench.samples.items())
    }
    print("\n| sample | median | least | most |\n|---|---|---|---|")
    for name, each in spread.items():
        print(f"| {name} | {each['median']:.4g} | {each['min']:.4g} | {each['max']:.4g} |")
    if options.json is not None:
        options.json.write_text(json.dumps({"samples": bench.samples, "spread": spread}, indent=1))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
