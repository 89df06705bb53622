# SPDX-License-Identifier: Apache-2.0
"""Saves every step of gpt_train, and prints what that costs: bytes a parameter and a step, and the stall.

Each step is read back. Some tensors of it must be, bit for bit, what the trainer held and has written to
files. All of it must be equal to that step of a training whose saves did not know what the optimizer did.
Then the trainer is killed at random times and started again. It may lose the save in flight and the step
whose save has not begun, and no other. At the end its losses, and each step that it has saved, are those of
the training that was never killed.

  durable_steps.py --steps 200 --kills 50
"""

import argparse
import filecmp
import itertools
import random
import signal
import subprocess
import sys
import time

import harness
import ml_dtypes  # noqa: F401, so that numpy knows bfloat16
import numpy as np
from exact_resume import Different, Log, check, say, title
from safetensors.numpy import load_file

SIZES = ["--num-layers", 2, "--num-attention-heads", 4, "--seq-length", 64]
DUMPED = ("transformer.wte.weight", "transformer.h.0.attn.c_attn.weight", "transformer.ln_f.bias")


def fields(line):
    """The named numbers of a line such as "step 5 logical_bytes 10 ..."."""
    words = line.split()
    return dict(zip(words[0::2], map(float, words[1::2]), strict=True))


def saves_of(printed):
    return [fields(line[6:]) for line in printed.splitlines() if line.startswith("saved ")]


class Steps:
    def __init__(self, folder, options, mode):
        self.folder, self.options, self.mode = folder, options, mode

    def command(self, store, *flags):
        last = self.options.steps
        return [
            harness.program("gpt_train"),
            *map(str, ["--train-iters", last, "--lr-decay-iters", last, "--micro-batch-size", 2]),
            *map(str, ["--save", store, "--load", store, "--durable-every-step"]),
            *map(str, ["--hidden-size", self.options.hidden_size, *SIZES]),
            f"--{self.mode}",
            *flags,
        ]

    def tensors(self):
        kinds = ["model", "exp_avg", "exp_avg_sq"] + (["master"] if self.mode == "bf16" else [])
        return [f"{kind}.{name}" for kind in kinds for name in DUMPED]

    def train(self, name, *flags):
        """A training that is not killed. Returns its store and what it has printed."""
        store = self.folder / f"{name}-{self.mode}"
        done = subprocess.run(self.command(store, *flags), capture_output=True, text=True)
        check(done.returncode == 0, f"gpt_train exited {done.returncode}\n{done.stderr}")
        return store, done.stdout

    def whole(self):
        """A training that says what its optimizer does, and one that does not.

        Returns the store of the first and its log.
        """
        dumps = [
            f"--dump-tensor={name}@{step}={self.folder / f'{name}@{step}'}"
            for step in range(1, self.options.steps + 1)
            for name in self.tensors()
        ]
        store, printed = self.train("whole", *dumps)
        self.say_costs(store, saves_of(printed))
        plain, printed_by_plain = self.train("plain", "--no-optimizer-hint")
        mean = np.mean([save["stored_bytes"] for save in saves_of(printed_by_plain)[1:]])
        say(f"a training that does not say it stores {mean / self.num_parameters:.3f} bytes")
        self.read_back(store, plain)
        return store, Log().add(printed)

    def say_costs(self, store, saves):
        check(
            [int(save["step"]) for save in saves] == list(range(1, self.options.steps + 1)), "gaps"
        )
        bytes_a_parameter = 14 if self.mode == "bf16" else 12  # master, moments, and the BF16 copy
        later = saves[1:]
        num_parameters = self.num_parameters = saves[0]["logical_bytes"] / bytes_a_parameter
        stored = np.array([save["stored_bytes"] for save in later]) / num_parameters
        stall, durable = (np.array([save[name] for save in later]) for name in ("stall_ms", "ms"))
        uses = harness.varve_json(store, "stats")["by_codec"]
        replayed = uses.get("replay", {"raw_bytes": 0})["raw_bytes"]
        check(replayed > 0, f"nothing is replayed: {sorted(uses)}")
        raw = sum(use["raw_bytes"] for use in uses.values())
        say(
            f"{num_parameters:.0f} parameters, {bytes_a_parameter} bytes each. After the first step a save "
            f"stores {stored.mean():.3f} bytes a parameter, {stored.mean() / bytes_a_parameter:.4f} of "
            f"the state, median {np.median(stored):.3f}, most {stored.max():.3f}"
        )
        say(
            f"stall a step: median {np.median(stall):.2f}, p95 {np.quantile(stall, 0.95):.2f} ms; durable "
            f"after: median {np.median(durable):.1f} ms. {replayed / raw:.3f} of all bytes are replayed"
        )

    def read_back(self, store, plain):
        num_bytes = 0
        for step in range(1, self.options.steps + 1):
            found = load_file(self.expect_equal(store, plain, step))
            for name in self.tensors():
                path = self.folder / f"{name}@{step}"
                expected = path.read_bytes()
                check(np.ascontiguousarray(found[name]).tobytes() == expected, f"{name}@{step}")
                num_bytes += len(expected)
                path.unlink()
        for each in (store, plain):
            harness.check(each)
        say(
            f"{self.options.steps} steps are read back and equal those of that training. {num_bytes} "
            "bytes of them are what the trainer held"
        )

    def killed(self, whole_store, whole):
        names = (self.folder / f"killed-{self.mode}-{i}" for i in itertools.count())
        store, log = next(names), Log()
        chance = random.Random(self.options.seed)
        kills = kills_after_saves = lost = 0
        while kills < self.options.kills:
            path = self.folder / "log"
            with open(path, "wb") as file:
                process = subprocess.Popen(self.command(store), stdout=file)
            time.sleep(chance.uniform(0.05, self.options.seconds))
            process.send_signal(signal.SIGKILL)
            if process.wait() == 0:  # it was done before. Another training begins
                store, log = next(names), Log()
                continue
            check(process.returncode == -signal.SIGKILL, f"gpt_train exited {process.returncode}")
            kills += 1
            log.add(path.read_text())
            if not log.steps:
                continue
            steps = harness.varve_json(store, "steps") if store.exists() else []
            durable = steps[-1]["step"] if steps else 0
            saved = max(log.saved, default=0)
            check(durable >= saved, f"step {saved} was reported as saved, the newest is {durable}")
            kills_after_saves += durable > 0
            behind = max(log.steps) - durable
            check(behind <= 2, f"killed after step {max(log.steps)}, the newest is {durable}")
            lost = max(lost, behind)
        check(kills_after_saves > 0, "no kill came after a save")
        done = subprocess.run(self.command(store), capture_output=True, text=True)
        check(done.returncode == 0, f"gpt_train exited {done.returncode}\n{done.stderr}")
        log.add(done.stdout)
        harness.check(store)
        for number, step in log.steps.items():
            check(step["bits"] == whole.steps[number]["bits"], f"step {number}: another loss")
        steps = [step["step"] for step in harness.varve_json(store, "steps")]
        check(max(steps) == self.options.steps, f"the newest step is {max(steps)}")
        for step in steps:
            self.expect_equal(store, whole_store, step)
        say(
            f"{kills} kills, {kills_after_saves} of them after a save: at most {lost} steps behind; losses "
            f"and {len(steps)} steps are equal"
        )

    def expect_equal(self, store, other, step):
        """Exports a step of two stores, and compares the files. Returns one of them."""
        files = []
        for i, each in enumerate((store, other)):
            files.append(self.folder / f"state{i}.safetensors")
            harness.varve(each, "export", step, "-o", files[-1], "--force")
        check(filecmp.cmp(*files, shallow=False), f"step {step} of {store.name} and {other.name}")
        return files[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=3.0, help="the longest time before a kill")
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for mode in ("bf16", "fp32"):
        title(f"{mode}: {options.steps} steps, each of them saved")
        with harness.clean_folder() as folder:
            try:
                steps = Steps(folder, options, mode)
                store, log = steps.whole()
                steps.killed(store, log)
            except Different as different:
                sys.exit(f"durable_steps: FAILED: {different}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
