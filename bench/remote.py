# SPDX-License-Identifier: Apache-2.0
"""Measures pushes to object stores and reads from them, on a Ceph of its own, beside the engine's own tool.

    PYTHONPATH=build/release/python python bench/remote.py

It measures in rounds. Each round runs the tool and varve once, in turn. The first round is thrown away. The
printed numbers are medians. bench/README.md defines each row. scripts/bench --remote builds first and then
calls this.
"""

import argparse
import contextlib
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
import varve
import varve.torch
from bench_table import (
    commit,
    cpu_times,
    default_state,
    describe_machine,
    print_table,
    row,
    steal_share,
)
from peers import load_states, train
from remote_engines import ROOT, S3, Rados, mini_ceph, timed
from remote_rows import MIB, PARTS, UNCHANGED_TENSORS

# While the slowdown of a trainer is measured, the trainer and its pushes have the first core, and the servers
# the second, because a real object store takes no cores of the trainer.
TRAINER_CORE, SERVER_CORE = 0, 1


class Samples:
    """All that was measured, by name. The first round is not in it."""

    def __init__(self):
        self.values = {}

    def note(self, name, value):
        self.values.setdefault(name, []).append(value)

    def median(self, name):
        return statistics.median(self.values[name])

    def ratio(self, name, other):
        """The median of the ratios of the rounds."""
        pairs = zip(self.values[name], self.values[other], strict=True)
        return statistics.median(a / b for a, b in pairs)


# Starts a process from a small one, because a process counts the memory of its parent at the start as its
# own.
LAUNCHER = """
import resource, subprocess, sys, time
started = time.monotonic()
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def peak_of(command, environment):
    """Seconds and the largest resident bytes of a process, which must succeed."""
    _, text = timed([sys.executable, "-c", LAUNCHER, *command], environment)
    seconds, kibibytes = text.split()
    return float(seconds), int(kibibytes) * 1024


def seconds_of(call):
    started = time.monotonic()
    result = call()
    return time.monotonic() - started, result


def tables_of(store):
    return sorted(store.glob("db/*.sst"))


def put_state(path, state):
    with varve.open(path, "w") as store, store.save(1) as step:
        for name, tensor in state.items():
            kind, _, rest = name.partition(".")
            master = f"master.{rest}" if kind == "model" else ""
            step.put(name, tensor, derived_from=master if master in state else "")


class Bench:
    def __init__(self, engine, options, folder, state):
        self.engine, self.options, self.folder, self.state = engine, options, folder, state
        self.samples = Samples()
        self.command = [options.bin / "varve", "-q", "-s"]

    # Throughput: the same bytes by the tool and by varve

    def throughput(self):
        store = self.folder / "store"
        put_state(store, self.state)
        files = tables_of(store)
        self.moved = sum(file.stat().st_size for file in files)
        target = {name: torch.empty_like(tensor) for name, tensor in self.state.items()}
        for number in range(self.options.rounds + 1):
            self.kept = number > 0
            url = self.engine.url(f"round{number}")
            parts = [lambda: self._tool(files), lambda url=url: self._varve(store, url, target)]
            for part in parts if number % 2 else reversed(parts):
                part()
            self.engine.empty()
        shutil.rmtree(store)

    def note(self, name, value):
        if self.kept:
            self.samples.note(name, value)

    def _tool(self, files):
        self.note("tool put", self.engine.put(files))
        self.note("tool get", self.engine.get(files))

    def _varve(self, store, url, target):
        seconds, peak = peak_of([*self.command, store, "push", url], self.engine.environment)
        self.note("push", seconds)
        self.note("push peak", peak)

        def load():
            with varve.open(url) as there:
                there["latest"].load(out=target)

        self.note("load", seconds_of(load)[0])
        for name, tensor in self.state.items():
            if not torch.equal(tensor, target[name]):
                sys.exit(f"bench: {name}, loaded from {url}, is not what was saved")
            target[name].zero_()
        pulled = self.folder / "pulled"
        seconds, _ = peak_of([*self.command, pulled, "pull", url], self.engine.environment)
        self.note("pull", seconds)
        shutil.rmtree(pulled)

    # Requests and bytes, as the server counts them

    def one_tensor(self):
        """After open: what the read of one tensor fetches, beside the bytes of its frames."""
        store = self.folder / "store"
        put_state(store, self.state)
        name = max(
            (n for n in self.state if n.startswith("master.")), key=lambda n: self.state[n].nbytes
        )
        shown = subprocess.run(
            [self.options.bin / "varve", "-s", store, "--json", "ls", "1", "--stored"],
            stdout=subprocess.PIPE,
            check=True,
        )
        frames = {each["name"]: each["stored_bytes"] for each in json.loads(shown.stdout)}[name]
        varve.push(store, self.engine.url("one"))
        with varve.open(self.engine.url("one")) as there:
            checkpoint = there["latest"]
            before = self.engine.counts()
            value = checkpoint.read(name, out=torch.empty_like(self.state[name]))
            found = self.engine.counts() - before
        if not torch.equal(value, self.state[name]):
            sys.exit(f"bench: {name} is not what was saved")
        self.one = (self.state[name].nbytes, frames, found)
        self.engine.empty()
        shutil.rmtree(store)

    def unchanged(self):
        """What a trainer that pushes each save sends for a step in which nothing has changed."""
        holder = torch.nn.ParameterList(torch.randn(1024) for _ in range(UNCHANGED_TENSORS))
        path = self.folder / "unchanged"
        self.same = []
        with varve.torch.Checkpointer(path, remote=self.engine.url("same")) as ckpt:
            ckpt.restore(model=holder)
            for step in range(6):
                before = self.engine.counts()
                ckpt.after_step(step)
                await_push(ckpt, step)
                if step > 0:
                    self.same.append(self.engine.counts() - before)
        self.engine.empty()
        shutil.rmtree(path)

    def many_steps(self):
        """Requests of an open of a store of many steps, pushed by a trainer every ten steps."""
        path, url = self.folder / "many", self.engine.url("many")
        tensors = {f"t{i}": np.zeros(1000, np.float32) for i in range(10)}
        with varve.open(path, "w") as store:
            for step in range(self.options.steps):
                for tensor in tensors.values():
                    tensor += 1
                store.save(step, tensors)
                if step % 10 == 9:
                    varve.push(path, url)
        before = self.engine.counts()
        with varve.open(url) as there:
            found = self.engine.counts() - before
            if len(there.steps()) != self.options.steps:
                sys.exit(f"bench: {url} has not {self.options.steps} steps")
        self.opened = found
        self.engine.empty()
        shutil.rmtree(path)

    # Training

    def trained(self):
        """Steps of a real training, each pushed, beside the same steps as safetensors that the tool sends."""
        import gpt_model

        torch.manual_seed(0)
        model = gpt_model.GPT(
            **({} if self.options.quick else {"width": 256, "layers": 4, "context": 64})
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
        text = gpt_model.read_text()
        path, file = self.folder / "trained", self.folder / "step.safetensors"
        self.files = self.varve_sent = 0
        with varve.torch.Checkpointer(path, remote=self.engine.url("trained")) as ckpt:
            ckpt.restore(model=model, optimizer=optimizer)
            for step in range(self.options.train_steps):
                loss = gpt_model.loss_of(model, text, 8, model.context)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                before = self.engine.counts()
                ckpt.after_step(step)
                await_push(ckpt, step)
                self.varve_sent += (self.engine.counts() - before).sent
                safetensors.torch.save_file(flat(model, optimizer), file)
                self.files += file.stat().st_size
                self.engine.put([file])
                if step % 10 == 9:
                    self.engine.discard()
            self.stored = varve.snapshots(self.engine.url("trained"))[-1].total_bytes
        self.engine.empty()
        shutil.rmtree(path)

    def slowdown(self):
        """Steps that compute on one core while a save is pushed, and while none is."""
        cores, num_threads = os.sched_getaffinity(0), torch.get_num_threads()
        torch.set_num_threads(1)
        self.engine.pin({SERVER_CORE})
        os.sched_setaffinity(0, {TRAINER_CORE})  # also of the threads that are started below
        try:
            self._slowdown()
        finally:
            os.sched_setaffinity(0, cores)
            self.engine.pin(cores)
            torch.set_num_threads(num_threads)

    def _slowdown(self):
        matrix = torch.randn(384, 384)

        def compute():
            for _ in range(self.products):
                torch.mm(matrix, matrix)

        self.products = 1
        seconds = min(seconds_of(compute)[0] for _ in range(50))
        self.products = max(1, int(self.options.step_seconds / seconds))
        holder = torch.nn.ParameterList(torch.randn(MIB // 4) for _ in range(self.options.push_mib))
        with contextlib.ExitStack() as stack:
            alone, remote = (
                stack.enter_context(
                    varve.torch.Checkpointer(self.folder / name, keep_last=2, **more)
                )
                for name, more in (
                    ("alone", {}),
                    ("pushed", {"remote": self.engine.url("slow"), "remote_keep": 1}),
                )
            )
            for each in (alone, remote):
                each.restore(model=holder)
            for step in range(self.options.rounds + 1):
                self.kept = step > 0
                for each in (alone, remote) if step % 2 else (remote, alone):
                    with torch.no_grad():
                        for parameter in holder:
                            parameter.normal_()
                    each.after_step(step)
                    each.wait()  # so that only the push is under way
                    seconds, _ = seconds_of(compute)
                    self.note("step alone" if each is alone else "step pushed", seconds)
                    if each is remote:
                        await_push(each, step)
                        self.note("push seconds", each.last_push.seconds)
        self.engine.empty()


def await_push(ckpt, step):
    ckpt.wait()
    while (push := ckpt.last_push) is None or push.step < step:
        if push is not None and push.error is not None:
            sys.exit(f"bench: {push.error}")
        time.sleep(0.002)


def flat(model, optimizer):
    found = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            found[f"{key}.{name}"] = value
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def measure(bench):
    yield row(bench.engine.name, "", "", verdict="")
    for part in bench.options.parts:
        rows = PARTS[part]
        seconds, _ = seconds_of(getattr(bench, part))
        print(f"bench: {bench.engine.name}: {part}, {seconds:.1f} s", file=sys.stderr, flush=True)
        for each in rows(bench):
            print("bench:   {what}: {measured}".format(**each), file=sys.stderr, flush=True)
            yield each


def parse_arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench --remote", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    parser.add_argument("--dir", type=pathlib.Path, default=ROOT / "build/bench-stores")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "build/bench_remote.json")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--only", choices=("s3", "rados"), help="one engine")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--state", type=pathlib.Path, default=default_state(), help="safetensors")
    parser.add_argument("--mib", type=int, default=240, help="size of what --state is repeated to")
    options = parser.parse_args()
    options.steps, options.train_steps, options.push_mib, options.step_seconds = 1000, 50, 96, 1.5
    if options.quick:
        options.state = None
        options.rounds, options.steps, options.train_steps = 1, 20, 2
        options.push_mib, options.step_seconds = 4, 0.02
    return options


def make_state(options):
    """Really trained state: that of a file, repeated, or of a training of some steps."""
    if options.state is None:
        return train(2 if options.quick else 60, options.quick)[0]
    return load_states([options.state], options.mib)[0]


def main():
    options = parse_arguments()
    if lacking := mini_ceph.missing():
        sys.exit(f"bench: {' '.join(lacking)} are missing: scripts/setup --object-stores")
    warnings.filterwarnings("ignore")
    options.dir.mkdir(parents=True, exist_ok=True)
    state = make_state(options)
    num_bytes = sum(tensor.nbytes for tensor in state.values())
    rows, samples, load_before, times_before = [], {}, os.getloadavg()[0], cpu_times()
    for make in (S3, Rados):
        if options.only not in (None, make.name.lower()):
            continue
        with (
            tempfile.TemporaryDirectory(prefix="remote_", dir=options.dir) as folder,
            contextlib.closing(make(pathlib.Path(folder))) as engine,
        ):
            bench = Bench(engine, options, pathlib.Path(folder), state)
            rows += measure(bench)
            samples[engine.name] = bench.samples.values
    if options.quick:
        for each in rows:
            if each["met"] is not None:
                each.update(met=None, verdict="not judged")
    document = {
        "commit": commit(),
        "quick": options.quick,
        "state": f"{options.state or 'of a training by this program'}, {num_bytes / 1e6:.0f} MB",
        "machine": describe_machine(options.dir.resolve()),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "steal_share": steal_share(times_before),
        "rows": rows,
        "samples": samples,
    }
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print_table(document)


if __name__ == "__main__":
    main()
