# SPDX-License-Identifier: Apache-2.0
"""Proves that a training of several ranks goes on where it was saved, by the same ranks or by others.

The same ranks: a training that is stopped and resumed prints the losses of one that never was, bit for
bit. Other ranks: what they save right after the load is what they have loaded, every global tensor bit
for bit; and they go on with the losses that the ranks before them would have had, but for rounding.

Ranks are processes that gpt_train starts, and those of mpirun where there is one.
"""

import argparse
import re
import subprocess
import sys

import harness
import ml_dtypes  # noqa: F401, so that numpy knows bfloat16
import numpy as np
from safetensors.numpy import load_file

SAME = ["tp2", "pp2", "dp2", "dp2 zero", "tp2 pp2 dp2 zero"]
# The word embedding, which both ends of a pipeline have, is cut by ZeRO in its middle with dp3.
CHANGES = [
    ("1", "tp2 pp2 dp2 zero"),
    ("tp2 pp2 dp2 zero", "1"),
    ("tp2", "pp2"),
    ("pp2", "tp2"),
    ("dp2", "dp2 zero"),
    ("dp2 zero", "dp2"),
    ("tp2 pp2 dp2 zero", "pp3"),
    ("tp2 pp2 dp2 zero", "dp3 zero"),
    ("pp3", "tp4"),
    ("dp3 zero", "pp2 dp3 zero"),
    ("pp2 dp3 zero", "tp2 dp2"),
]
BATCH = 12
TOLERANCE = {"fp32": 1e-4, "bf16": 4e-3}


class Different(Exception):
    pass


def check(holds, what):
    if not holds:
        raise Different(what)


class Layout:
    """Of "tp2 pp2 dp2 zero": the number of ranks, and the flags that say how they share the work."""

    def __init__(self, name):
        self.name = name
        sizes = {word[:2]: int(word[2:]) for word in name.split() if word[:2] in ("tp", "pp", "dp")}
        self.ranks = int(np.prod(list(sizes.values()), dtype=int))
        self.flags = [text for key, size in sizes.items() for text in (f"--{key}", size)]
        self.flags += ["--zero"] if "zero" in name else []


class Proof:
    def __init__(self, folder, options, mode):
        self.folder = folder
        self.mode = mode
        self.stop, self.last = options.stop, options.steps
        self.straight = {}  # losses and their bits, by layout
        self.model = [
            "--num-layers",
            3,
            "--hidden-size",
            options.hidden,
            "--num-attention-heads",
            4,
            "--seq-length",
            16,
            "--micro-batch-size",
            BATCH,
            "--lr-warmup-iters",
            2,
            "--lr-decay-iters",
            options.steps,
            f"--{mode}",
        ]

    def train(self, layout, *flags, mpirun=False):
        """The losses that it prints, by step, and the step that it says to have loaded."""
        start = []
        if mpirun:
            start = harness.mpirun(layout.ranks)
            flags = [*flags, "--threads", 1]
        elif layout.ranks > 1:
            flags = [*flags, "--spawn", layout.ranks]
        command = [*start, harness.program("gpt_train"), *self.model, *layout.flags, *flags]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        check(
            done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}{done.stderr}"
        )
        steps = {}
        for step, loss, bits, sample in re.findall(
            r"^step (\d+) loss (\S+) bits (\S+) .* samples (\d+)-", done.stdout, re.MULTILINE
        ):
            steps[int(step)] = float(loss), bits
            check(
                int(sample) == BATCH * (int(step) - 1), f"step {step} begins with sample {sample}"
            )
        loaded = re.search(r"^loaded step (\d+) ", done.stdout, re.MULTILINE)
        return steps, int(loaded[1]) if loaded else None

    def straight_losses(self, layout, *flags):
        key = (layout.name, *flags)
        if key not in self.straight:
            self.straight[key], _ = self.train(layout, "--train-iters", self.last, *flags)
            check(sorted(self.straight[key]) == list(range(1, self.last + 1)), "steps are missing")
        return self.straight[key]

    def store(self, *names):
        return self.folder / "-".join(map(str, [self.mode, *names])).replace(" ", "_")

    def stopped(self, layout, *flags):
        """A store with the step at which a training was stopped."""
        store = self.store("from", layout.name, *flags)
        if not store.exists():
            self.train(
                layout,
                "--train-iters",
                self.last,
                "--save",
                store,
                "--save-interval",
                1000,
                "--exit-interval",
                self.stop,
                *flags,
            )
        return store

    def same_ranks(self, layout, *flags, mpirun=False):
        expected = self.straight_losses(layout)
        store = self.stopped(layout)
        to = self.store("to", layout.name, *flags) if flags or mpirun else store
        saving = ["--load", store, "--save", to, "--save-interval", 1000, *flags]
        losses, loaded = self.train(layout, "--train-iters", self.last, *saving, mpirun=mpirun)
        check(loaded == self.stop, f"{layout.name}: loaded step {loaded}")
        check(
            sorted(losses) == list(range(self.stop + 1, self.last + 1)), f"steps {sorted(losses)}"
        )
        for step, (loss, bits) in losses.items():
            check(
                bits == expected[step][1],
                f"{layout.name}: the loss of step {step} is {loss} ({bits}), expected {expected[step]}",
            )
        harness.check(to)
        return f"{len(losses)} losses"

    def other_training(self, layout):
        """The comparison must see that this is another one."""
        try:
            self.same_ranks(layout, "--weight-decay", 0.1001)
        except Different:
            return "no, as it should be: another --weight-decay"
        raise Different("losses of another training were called equal")

    def export(self, store):
        out = self.folder / "state.safetensors"
        harness.varve(store, "export", self.stop, "-o", out, "--force")
        return load_file(out)

    def compare_tensors(self, what, store, expected_store):
        expected, found = self.export(expected_store), self.export(store)
        check(sorted(expected) == sorted(found), f"{what}: not the same tensors")
        for name, tensor in expected.items():
            other = found[name]
            check(
                other.dtype == tensor.dtype and other.shape == tensor.shape,
                f"{what}: {name}: shape",
            )
            a, b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (tensor, other))
            check(np.array_equal(a, b), f"{what}: {name} differs first in byte {np.argmax(a != b)}")
        return f"{len(expected)} tensors"

    def other_ranks(self, source, target):
        """Without dropout, whose generator starts anew when the number of ranks changes."""
        what = f"{source.name} -> {target.name}"
        no_dropout = ["--dropout", 0]
        saved, expected = (
            self.stopped(source, *no_dropout),
            self.straight_losses(source, *no_dropout),
        )
        store = self.store(source.name, "to", target.name)
        saving = ["--save", store, "--save-interval", 1000, *no_dropout]
        losses, loaded = self.train(target, "--train-iters", self.stop, "--load", saved, *saving)
        check(
            loaded == self.stop and not losses, f"{what}: loaded {loaded}, trained {sorted(losses)}"
        )
        tensors = self.compare_tensors(what, store, saved)
        losses, _ = self.train(target, "--train-iters", self.last, "--load", store, *saving)
        check(
            sorted(losses) == list(range(self.stop + 1, self.last + 1)), f"steps {sorted(losses)}"
        )
        for step, (loss, _) in losses.items():
            difference = abs(loss / expected[step][0] - 1)
            check(
                difference < TOLERANCE[self.mode],
                f"{what}: the loss of step {step} is {loss}, expected about {expected[step][0]}",
            )
        harness.check(store)
        return tensors

    def weights_cost_nothing(self, layout):
        """Each is a reference to its master, also where ZeRO has cut that."""
        weights = harness.varve_json(self.stopped(layout), "log", "model.*")
        check(weights, "there are no weights")
        for weight in weights:
            check(weight["stored_bytes"] == 0, f"{layout.name}: {weight}")
        return f"{len(weights)} weights, of which nothing is stored"

    def without_optimizer(self, layout):
        """The masters are made from the weights, wherever ZeRO has them: else they would undo the load."""
        saved, store = self.stopped(layout), self.store(layout.name, "without-optimizer")
        self.train(
            layout,
            "--train-iters",
            self.stop,
            "--load",
            saved,
            "--ckpt-step",
            self.stop,
            "--no-load-optim",
            "--save",
            store,
            "--save-interval",
            1000,
        )
        before, after = self.export(saved), self.export(store)
        names = [name.removeprefix("master.") for name in after if name.startswith("master.")]
        check(names, "there are no masters")
        for name in names:
            weight, master = after[f"model.{name}"], after[f"master.{name}"]
            check(np.array_equal(weight, before[f"model.{name}"]), f"{layout.name}: model.{name}")
            check(
                np.array_equal(master, weight.astype(np.float32)), f"{layout.name}: master.{name}"
            )
        return f"{len(names)} masters, made from weights"


def print_row(kind, *cells):
    print(f"{kind:<6} " + " ".join(f"{cell:<20}" for cell in cells).rstrip())


def run(folder, options):
    modes = {mode: Proof(folder, options, mode) for mode in ("fp32", "bf16")}
    print_row("type", "saved by", "loaded by", "equal bit for bit")
    for mode, proof in modes.items():
        for name in SAME:
            print_row(mode, name, name, proof.same_ranks(Layout(name)))
        print_row(mode, "dp2 zero", "dp2 zero", proof.other_training(Layout("dp2 zero")))
    layout = Layout("tp2 pp2")
    print_row(
        "bf16",
        layout.name,
        f"{layout.name} (mpirun)",
        harness.why_no_mpi() or modes["bf16"].same_ranks(layout, mpirun=True),
    )
    for name in ("dp2 zero", "tp2 pp2 dp2 zero"):
        print_row("bf16", name, name, modes["bf16"].without_optimizer(Layout(name)))
        print_row("bf16", name, "", modes["bf16"].weights_cost_nothing(Layout(name)))
    for mode in ("fp32", "bf16") if options.all else ("bf16",):
        for source, target in CHANGES:
            print_row(mode, source, target, modes[mode].other_ranks(Layout(source), Layout(target)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--stop", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=32, help="a multiple of 4")
    parser.add_argument("--all", action="store_true", help="other ranks in fp32, too")
    options = parser.parse_args()
    with harness.clean_folder() as folder:
        try:
            run(folder, options)
        except Different as different:
            sys.exit(f"gpt_ranks_resume: FAILED: {different}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
