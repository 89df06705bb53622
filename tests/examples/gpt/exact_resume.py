# SPDX-License-Identifier: Apache-2.0
"""Proves that a resumed training is the very training that was never stopped.

gpt_train trains straight, and beside that is stopped and resumed in all the ways that happen: the
losses of every step, all weights, all optimizer tensors and the trainer state must be equal bit for
bit, in fp32 and in bf16. Prints the losses side by side; ends at the first bit that differs.

scripts/exact_resume runs it at full size.
"""

import argparse
import contextlib
import io
import os
import signal
import subprocess
import sys

import harness
import ml_dtypes  # noqa: F401, so that numpy knows bfloat16
import numpy as np
from safetensors.numpy import load_file

MODEL = ["--num-layers", 2, "--hidden-size", 64, "--num-attention-heads", 4, "--seq-length", 64]
PREEMPTED = 75


class Different(Exception):
    pass


class Log:
    """What runs of gpt_train have printed, one after the other, as one training."""

    def __init__(self):
        self.steps = {}  # by number: {"loss": ..., "bits": ..., "lr": ..., "samples": ...}
        self.loaded = None
        self.saved = []

    def add(self, text):
        for line in text.splitlines():
            words = line.split()
            if line.startswith("step "):
                self.steps[int(words[1])] = dict(zip(words[2::2], words[3::2], strict=False))
            elif line.startswith("loaded step "):
                self.loaded = int(words[2])
                self.steps = {n: step for n, step in self.steps.items() if n <= self.loaded}
            elif line.startswith("saved step "):
                self.saved.append(int(words[2]))
        return self


def say(text):
    print(f"   {text}".rstrip())


def title(text):
    print(f"\n== {text}")


def check(holds, what):
    if not holds:
        raise Different(what)


class Proof:
    def __init__(self, folder, options):
        self.folder = folder
        self.last, self.stop, self.interval = options.steps, options.stop, options.interval
        self.mode = None

    # Running the trainer.

    def command(self, store, *flags):
        flags = [
            "--train-iters",
            self.last,
            "--lr-decay-iters",
            self.last,
            "--micro-batch-size",
            2,
            "--save",
            store,
            "--save-interval",
            self.interval,
            "--load",
            store,
            "--async-save",
            f"--{self.mode}",
            *MODEL,
            *flags,
        ]
        # A flag that is given again replaces the one before.
        names = [flag for flag in flags if str(flag).startswith("--")]
        for name in {name for name in names if names.count(name) > 1}:
            at = flags.index(name)
            del flags[at : at + 2]
        return [harness.program("gpt_train"), *map(str, flags)]

    def train(self, store, *flags, log=None, expect=0):
        done = subprocess.run(
            self.command(store, *flags), capture_output=True, text=True, check=False
        )
        check(
            done.returncode == expect,
            f"gpt_train exited {done.returncode}, expected {expect}\n{done.stdout}{done.stderr}",
        )
        return (log or Log()).add(done.stdout)

    @contextlib.contextmanager
    def running(self, store):
        """A trainer under way, and the file that it prints to. Killed at the end if it still runs."""
        path = self.folder / "log"
        with open(path, "wb") as file:
            process = subprocess.Popen(self.command(store), stdout=file)
        try:
            yield process, path
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def new_store(self, name):
        return self.folder / f"{name}-{self.mode}"

    @staticmethod
    def has_line(path, beginning):
        return any(line.startswith(beginning) for line in path.read_text().splitlines())

    def interrupted(self, name, send, is_moment, is_right):
        """Starts trainings until one was sent the signal at the right moment. Its store and log."""
        for attempt in range(1, 51):
            store = self.new_store(f"{name}-{attempt}")
            with self.running(store) as (process, path):
                while process.poll() is None and not is_moment(store, path):
                    pass
                if process.poll() is None:
                    process.send_signal(send)
                code = process.wait()
            if is_right(store, code):
                return store, Log().add(path.read_text())
        raise Different(f"{name}: the signal came too late 50 times")

    # Comparing.

    def compare_losses(self, whole, resumed, column="loss", everything=False):
        check(
            sorted(whole.steps) == list(range(1, self.last + 1)), "the straight training has gaps"
        )
        check(
            sorted(resumed.steps) == sorted(whole.steps),
            f"the resumed training has the steps {sorted(resumed.steps)}",
        )
        at = resumed.loaded
        shown = ("step", "straight", "resumed")
        say(f"{shown[0]:>5}  {column + ', ' + shown[1]:<28} {column + ', ' + shown[2]:<28}")
        for number in sorted(whole.steps):
            pair = whole.steps[number], resumed.steps[number]
            if everything or number in (1, at - 1, at, at + 1, at + 2, self.last):
                cells = [
                    f"{step['loss']} {step['bits']}" if column == "loss" else step[column]
                    for step in pair
                ]
                note = f"  <- loaded step {at}" if number == at + 1 else ""
                say(f"{number:>5}  {cells[0]:<28} {cells[1]:<28}{note}")
            for field in ("bits", "lr", "samples", "grad_norm"):
                check(
                    pair[0][field] == pair[1][field],
                    f"step {number}: {field} is {pair[1][field]}, expected {pair[0][field]}",
                )

    def export(self, store, step):
        out = self.folder / "state.safetensors"
        harness.varve(store, "export", step, "-o", out, "--force")
        return load_file(out)

    def compare_states(self, whole_store, store, step, run="main"):
        """Every byte of weights and optimizer, and the trainer state."""
        whole, resumed = self.export(whole_store, step), self.export(store, f"{run}@{step}")
        check(sorted(whole) == sorted(resumed), f"step {step}: not the same tensors")
        num_bytes = 0
        for name, expected in whole.items():
            found = resumed[name]
            check(found.dtype == expected.dtype and found.shape == expected.shape, f"{name}: shape")
            a, b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (expected, found))
            if not np.array_equal(a, b):
                at = int(np.flatnonzero(a != b)[0])
                raise Different(
                    f"step {step}: {name} differs first in byte {at}: "
                    f"{b[at]:#04x}, expected {a[at]:#04x}"
                )
            num_bytes += a.size
        states = [
            harness.varve_json(s, "show", at)["trainer_state"]
            for s, at in ((whole_store, step), (store, f"{run}@{step}"))
        ]
        check(
            states[0] == states[1],
            f"step {step}: trainer state\n{states[1]}\nexpected\n{states[0]}",
        )
        say(
            f"step {step}: all {len(whole)} tensors, {num_bytes} bytes, and the trainer state are equal"
        )

    # The cases.

    def plain(self, whole_store, whole):
        title(f"{self.mode}: {self.last} steps straight against {self.stop}, stopped, resumed")
        store = self.new_store("plain")
        log = self.train(store, "--exit-interval", self.stop)
        check(max(log.steps) == self.stop, "it did not stop where --exit-interval says")
        self.train(store, log=log)
        check(log.loaded == self.stop, f"loaded step {log.loaded}")
        self.compare_losses(whole, log, everything=True)
        for step in (self.stop, self.last):
            self.compare_states(whole_store, store, step)

    def batch_size(self):
        title(f"{self.mode}: resumed with another batch size, the next sample is the same")
        whole_store, store = self.new_store("batch-whole"), self.new_store("batch")
        whole = self.train(whole_store, "--switch-batch-size", f"4@{self.stop}")
        log = self.train(store, "--exit-interval", self.stop)
        self.train(store, "--micro-batch-size", 4, log=log)
        samples = {n: step["samples"] for n, step in log.steps.items()}
        check(samples[self.stop] == f"{2 * self.stop - 2}-{2 * self.stop - 1}", samples)
        check(samples[self.stop + 1] == f"{2 * self.stop}-{2 * self.stop + 3}", samples)
        self.compare_losses(whole, log, "samples")
        self.compare_losses(whole, log)
        self.compare_states(whole_store, store, self.last)

    def warm_up(self):
        end = self.stop * 3 // 2
        title(f"{self.mode}: stopped in the warm-up, which ends at step {end}")
        flags = ["--lr-warmup-iters", end]
        whole_store, store = self.new_store("warm-whole"), self.new_store("warm")
        whole = self.train(whole_store, *flags)
        rates = [float(whole.steps[n]["lr"]) for n in range(1, self.last + 1)]
        check(max(rates) == rates[end - 1] > rates[end], "the learning rate has its peak elsewhere")
        log = self.train(store, *flags, "--exit-interval", self.stop)
        self.train(store, *flags, log=log)
        self.compare_losses(whole, log, "lr")
        for step in (self.stop, self.last):
            self.compare_states(whole_store, store, step)

    def killed(self, whole_store, whole):
        title(f"{self.mode}: killed (SIGKILL) in the middle of a save in the background")

        def incoming(store):
            with contextlib.suppress(FileNotFoundError):
                return [file.name for file in os.scandir(store / "incoming") if file.is_file()]
            return []

        store, log = self.interrupted(
            "killed",
            signal.SIGKILL,
            lambda store, path: incoming(store) and self.has_line(path, f"saved step {self.stop} "),
            lambda store, code: code == -signal.SIGKILL and incoming(store),
        )
        say(
            f"killed after step {max(log.steps)}, saved were {log.saved}; "
            f"of the save under way there were the files {', '.join(sorted(incoming(store)))}"
        )
        self.train(store, log=log)
        check(not incoming(store), "leftovers of the killed save are still there")
        check(self.stop <= log.loaded < self.last, f"loaded step {log.loaded}")
        self.compare_losses(whole, log)
        self.compare_states(whole_store, store, self.last)
        harness.check(store)

    def preempted(self, whole_store, whole):
        title(f"{self.mode}: SIGTERM saves at the next step boundary and exits with {PREEMPTED}")
        store, log = self.interrupted(
            "preempted",
            signal.SIGTERM,
            lambda store, path: self.has_line(path, f"step {self.stop + 1} "),
            lambda store, code: code == PREEMPTED,
        )
        stopped = max(log.steps)
        check(log.saved[-1] == stopped, f"stopped after step {stopped}, saved {log.saved}")
        say(f"stopped and saved after step {stopped}")
        self.train(store, log=log)
        check(log.loaded == stopped, f"loaded step {log.loaded}")
        self.compare_losses(whole, log)
        self.compare_states(whole_store, store, self.last)

    def older_step(self, whole_store, whole):
        older = self.last - self.interval
        title(
            f"{self.mode}: back to step {older} of {self.last}; the steps after it are kept aside"
        )
        store = self.new_store("older")
        log = self.train(store)
        self.train(store, "--ckpt-step", older, log=log)
        self.compare_losses(whole, log)
        self.compare_states(whole_store, store, self.last)
        self.compare_states(whole_store, store, self.last, run="main~1")
        steps = {
            run: [entry["step"] for entry in harness.varve_json(store, "steps", "--run", run)]
            for run in ("main", "main~1")
        }
        say(f"steps of the runs: {steps}")
        saved = list(range(self.interval, self.last + 1, self.interval))
        check(steps == {"main": saved, "main~1": [self.last]}, steps)

    def other_training(self, whole_store, whole):
        title(f"{self.mode}: the comparisons see another --weight-decay from step {self.stop} on")
        store = self.new_store("other")
        log = self.train(store, "--exit-interval", self.stop)
        self.train(store, "--weight-decay", 0.1001, log=log)
        for compare in (
            lambda: self.compare_losses(whole, log),
            lambda: self.compare_states(whole_store, store, self.last),
        ):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    compare()
            except Different as different:
                say(f"{different}")
            else:
                raise Different("but a comparison called it equal")

    def half_a_command(self):
        title("--save without --save-interval, and the other way round, fail before the first step")
        for flags in (["--save", self.folder / "none"], ["--save-interval", 5]):
            command = [harness.program("gpt_train"), *map(str, MODEL + flags)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            check(done.returncode == 1 and "--save-interval" in done.stderr, done.stderr)
            check("step 1 " not in done.stdout, done.stdout)
            say(done.stderr.strip())

    def run(self):
        self.half_a_command()
        for self.mode in ("fp32", "bf16"):
            whole_store = self.new_store("whole")
            whole = self.train(whole_store)
            self.plain(whole_store, whole)
            self.batch_size()
            self.warm_up()
            self.killed(whole_store, whole)
            self.preempted(whole_store, whole)
            self.older_step(whole_store, whole)
            self.other_training(whole_store, whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--stop", type=int, default=40)
    parser.add_argument("--interval", type=int, default=10, help="a divisor of both")
    options = parser.parse_args()
    with harness.clean_folder() as folder:
        try:
            Proof(folder, options).run()
        except Different as different:
            sys.exit(f"exact_resume: FAILED: {different}")
    title("Every comparison was equal, bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
