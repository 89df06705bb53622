# SPDX-License-Identifier: Apache-2.0
"""Stops a writing process (SIGSTOP) at random moments, and lets it go on. Readers do not notice.

While the writer is stopped, a reader finds every step that it has reported, with its bytes, and none that it
has not announced. `varve check --read-data`, `steps`, `ls`, `export` and `get` succeed each time.
"""

import argparse
import contextlib
import os
import random
import select
import shutil
import signal
import sys
import time

import harness
import numpy
import safetensors_bytes as files
from crash_test import Journal, Writer, read_store

FULL_SIZE = "VARVE_FULL_SIZE" in os.environ
PATIENCE = 300  # seconds, only so that the test ends
MOMENTS = ["saving large", "saving small", "dropping", "reclaiming", "saved"]


def stop(writer):
    """Stops the writer, and reads what it had said until then."""
    os.kill(writer.process.pid, signal.SIGSTOP)
    _, status = os.waitpid(writer.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"the writer ended by itself with status {status}"
    while select.select([writer.process.stdout], [], [], 0)[0]:
        writer.take(writer.process.stdout.read1(1 << 16))


def wait_for_a_moment(writer, rng):
    """Lets the writer work until it is about to do something, and a little longer."""
    moment = rng.choice(MOMENTS)
    writer.read_until(time.monotonic() + 3, lambda line: line.startswith(moment))
    time.sleep(rng.choice([0, 0.001, 0.01, 0.1]) * rng.random())


def judge(store, journal, folder):
    found, partial = read_store(store)
    lost, strange = journal.compare(found)
    assert not (lost or strange or partial), (
        f"lost {lost}, not as journaled {strange}, partial {partial}"
    )
    harness.check(store)
    listed = {(s["run"], str(s["step"])) for s in harness.varve_json(store, "steps")}
    assert listed == set(found), f"steps lists {listed}, a reader finds {set(found)}"
    if listed:
        judge_step(store, "@".join(max(listed)), folder)
    return len(listed)


def judge_step(store, step, folder):
    """What get gives of each tensor is what export gives."""
    out = folder / "out.safetensors"
    harness.varve(store, "export", step, "-o", out, "--force")
    exported = files.read(out)
    names = [tensor["name"] for tensor in harness.varve_json(store, "ls", step)]
    assert sorted(names) == sorted(exported), f"ls of {step} lists {names}"
    name = names[0]
    harness.varve(store, "get", step, name, "-o", folder / "out.npy", "--force")
    got = numpy.load(folder / "out.npy").tobytes()
    assert got == exported[name][2], f"get gives other bytes of {name} at {step}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stops", type=int, default=50 if FULL_SIZE else 5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    read = 0
    with harness.clean_folder() as folder:
        store, journal = folder / "store", Journal()
        writer = Writer(store, options.seed, journal)
        try:
            writer.read_until(time.monotonic() + PATIENCE, lambda line: line.startswith("saved"))
            assert journal.committed > 0, f"nothing was saved in {PATIENCE} s"
            for number in range(options.stops):
                wait_for_a_moment(writer, rng)
                stop(writer)
                where = f"stop {number}, seed {options.seed}, at '{writer.lines[-1]}'"
                try:
                    read += judge(store, journal, folder)
                except AssertionError as error:
                    raise AssertionError(f"{where}: {error}") from error
                os.kill(writer.process.pid, signal.SIGCONT)
                said = len(writer.lines)
                writer.read_until(time.monotonic() + PATIENCE, lambda line: True)
                assert len(writer.lines) > said, f"the writer does not go on after {where}"
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(writer.process.pid, signal.SIGCONT)
            writer.kill()
        shutil.rmtree(store)
    print(
        f"{options.stops} stops, seed {options.seed}: {read} steps read meanwhile, 0 wrong answers"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
