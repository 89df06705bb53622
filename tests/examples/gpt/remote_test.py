# SPDX-License-Identifier: Apache-2.0
"""A training that saves to its own disk and to an object store. Its host dies, the disk is lost, and another
host goes on: every loss is that of a training that was never stopped, bit for bit.

On a folder, and with Ceph (scripts/setup --object-stores) on its gateway for S3 and on RADOS itself. What one
host has on its disk, the other never opens.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time

import harness
import mini_ceph

MODEL = ["--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 32]
TENSOR = "master.transformer.h.1.mlp.c_fc.weight"


def show(text=""):
    print(text, flush=True)


def steps_of(text):
    """The loss, its bits and the samples of each step."""
    lines = [line.split() for line in text.splitlines() if line.startswith("step ")]
    return {int(words[1]): (words[3], words[5], words[9]) for words in lines}


class Training:
    def __init__(self, folder, steps, interval):
        self.folder, self.steps, self.interval = folder, steps, interval
        self.last = None  # step

    def command(self, host, last, *flags):
        store = self.folder / host / "ckpt"
        program = harness.program("gpt_train")
        flags = [
            *("--train-iters", last, "--lr-decay-iters", self.steps, "--micro-batch-size", 2),
            *("--save", store, "--save-interval", self.interval, "--load", store),
            *MODEL,
            *flags,
        ]
        return [program, *map(str, flags)]

    def train(self, host, *flags):
        command = self.command(host, self.last, *flags)
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def die(self, host, *flags):
        """Trains until a push is there, then some steps more, and kills it.

        On a busy machine that takes more steps. Another training shall do them all, and not end before.
        """
        path = self.folder / "log"
        with open(path, "wb") as file:
            command = self.command(host, 10**6, *flags)
            process = subprocess.Popen(command, stdout=file, stderr=file)
        deadline = time.monotonic() + 240
        try:
            while True:
                text = path.read_text(errors="replace")
                pushed = [line for line in text.splitlines() if line.startswith("pushed step ")]
                if len(pushed) >= 2:
                    break
                assert process.poll() is None, text
                assert time.monotonic() < deadline, text
                time.sleep(0.005)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        killed = path.read_text(errors="replace")
        ends = -(-max(steps_of(killed)) // self.interval) * self.interval + self.interval
        self.last = max(self.steps, ends)
        return killed


def run(folder, url, options):
    """Kills a training with its disk, and goes on elsewhere."""
    training = Training(folder, options.steps, options.interval)
    show(f"-- host a: a training with --remote {url}, killed (SIGKILL), and its disk deleted")
    killed = training.die("a", "--remote", url, "--remote-keep", 5)
    for line in killed.splitlines():
        if line.startswith(("pushed", "saved")):
            show("   " + line)
    shutil.rmtree(folder / "a")
    show("-- the same without interruption")
    straight = steps_of(training.train("whole"))
    assert sorted(straight) == list(range(1, training.last + 1)), straight
    show("-- host b, whose disk is empty, starts with the same flags")
    resumed = training.train("b", "--remote", url, "--remote-keep", 5)
    loaded = [line for line in resumed.splitlines() if line.startswith("loaded step ")]
    assert len(loaded) == 1, resumed
    show("   " + loaded[0])
    at = int(loaded[0].split()[2])
    assert at >= 2 * options.interval, loaded
    both = {step: values for step, values in steps_of(killed).items() if step <= at}
    both.update(steps_of(resumed))
    assert both == straight, "the losses differ"
    show(
        f"   losses of steps 1 to {training.last}, first on a and from {at + 1} on b: equal, bit for bit"
    )
    show("-- host c reads without a store")
    steps = [step["step"] for step in harness.varve_json(url, "steps")]
    assert steps[-1] == training.last and len(steps) >= 3, steps
    for step in (steps[0], steps[-1]):
        there, here = folder / f"there{step}.npy", folder / f"here{step}.npy"
        harness.varve(url, "get", step, TENSOR, "-o", there)
        harness.varve(folder / "whole" / "ckpt", "get", step, TENSOR, "-o", here)
        assert there.read_bytes() == here.read_bytes()
        there.unlink(), here.unlink()
        show(f"   {TENSOR} of step {step}, read from {url}: equal to that of the whole training")
    assert harness.varve_json(url, "check", "--read-data")["ok"]
    shutil.rmtree(folder / "b")
    shutil.rmtree(folder / "whole")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--interval", type=int, default=5)
    parser.add_argument("--only", choices=["file", "s3", "rados"])
    options = parser.parse_args()
    lacking = mini_ceph.missing()
    with harness.clean_folder() as folder:
        if options.only in (None, "file"):
            show("== file")
            run(folder, f"file://{folder}/remote", options)
        if options.only == "file":
            return 0
        if lacking:
            show(
                f"s3, rados: not run: {' '.join(lacking)} are missing (scripts/setup --object-stores)"
            )
            return harness.SKIPPED if options.only else 0
        with mini_ceph.mini_ceph() as ceph:
            os.environ.update(ceph.s3_environment())
            os.environ["CEPH_CONF"] = str(ceph.config)
            for engine, url in (("s3", ceph.s3_url("gpt")), ("rados", "rados://varve/gpt")):
                if options.only in (None, engine):
                    show(f"== {engine}")
                    run(folder, url, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
