# SPDX-License-Identifier: Apache-2.0
"""Kills a verb that asks a live writer for a change, or the writer, or both, at random moments.

Steps that nobody drops stay, with their bytes. A verb whose writer is killed does its work itself. The same
verb works again. The next writer leaves nothing in the inbox but answers that nobody has fetched, and files
that were cut short. The next verb that asks removes these once they are an hour old.
"""

import argparse
import collections
import concurrent.futures
import os
import random
import shutil
import subprocess
import sys
import time

import harness
import store_verbs

FULL_SIZE = "VARVE_FULL_SIZE" in os.environ
ASKED = ("tag", "untag", "metric", "drop", "forget")
TWO_HOURS = 7200


class Asking(store_verbs.Run):
    """A verb that asks the writer of its store."""

    def open_writer(self):
        self.writer = harness.StoreTool(self.store, store_verbs.PLAN)
        assert self.writer.opened == "ok", self.writer.opened

    def start(self):
        return subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def end(self, process):
        """Returns the exit code, and what it said."""
        said = process.stderr.read()
        process.stderr.close()
        return process.wait(), said

    def inbox(self):
        return sorted(path.name for path in self.store.glob("inbox/*"))

    def expect_swept(self):
        """Another writer applies what waits. What is old goes."""
        with harness.StoreTool(self.store, store_verbs.PLAN) as tool:
            tool.must("save 200 200")
            harness.varve(self.store, "metric", 6, "seen=1")  # applied after all that came before
        left = [name for name in self.inbox() if not name.endswith((".answer", ".tmp"))]
        assert not left, f"left in the inbox: {left}"
        for path in self.store.glob("inbox/*"):
            old = time.time() - TWO_HOURS
            os.utime(path, (old, old))
        with harness.StoreTool(self.store, store_verbs.PLAN) as tool:
            tool.must("save 201 201")
            harness.varve(self.store, "metric", 6, "seen=2")  # who asks sweeps
        assert not self.inbox(), f"left in the inbox for ever: {self.inbox()}"


def kill_once(template, verb, victims, folder, rng, seconds):
    """Returns whether the verb was still at work."""
    run = Asking(template, verb, folder)
    run.open_writer()
    asker = run.start()
    delay = rng.random() * seconds
    time.sleep(delay)
    was_running = asker.poll() is None
    where = f"{victims} of {verb.name} killed after {delay * 1000:.1f} ms, in {folder}"
    try:
        if victims != "writer":
            asker.kill()
        if victims != "asker":
            run.writer.process.kill()
        code, said = run.end(asker)
        if victims == "writer":
            assert code == 0, f"the verb whose writer was killed: exit {code}: {said}"
        if victims == "asker":
            run.writer.must("verify 6")
        run.writer.__exit__()
        run.expect_kept()
        harness.check(run.store)
        code, said = run.end(run.start())
        assert code == 0 or code in store_verbs.REFUSED, f"again: exit {code}: {said}"
        run.expect_done()
        run.expect_swept()
        run.expect_kept()
        harness.check(run.store)
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    shutil.rmtree(folder)
    return was_running


def seconds_of(template, verb, folder):
    """How long the verb takes beside a writer."""
    run = Asking(template, verb, folder)
    run.open_writer()
    started = time.monotonic()
    code, said = run.end(run.start())
    assert code == 0, said
    seconds = time.monotonic() - started
    run.writer.__exit__()
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=300 if FULL_SIZE else 15)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    struck = collections.Counter()
    chosen = [verb for verb in store_verbs.verbs() if verb.name in ASKED]
    assert len(chosen) == len(ASKED), chosen
    with harness.clean_folder() as folder:
        template = store_verbs.Template(folder)
        seconds = {
            verb.name: seconds_of(template, verb, folder / f"whole {verb.name}") for verb in chosen
        }

        def one(kill):
            verb = chosen[kill % len(chosen)]
            victims = ["asker", "writer", "both"][kill // len(chosen) % 3]
            rng = random.Random(f"{options.seed} {kill}")
            return victims, kill_once(
                template, verb, victims, folder / f"kill{kill}", rng, seconds[verb.name]
            )

        # More than there are processors: writers look for requests twice a second.
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for victims, was_running in pool.map(one, range(options.kills)):
                struck[victims] += was_running
    assert options.kills < 15 or sum(struck.values()) > 0, "no verb was killed at work"
    print(
        f"{options.kills} kills, seed {options.seed}, at work: {dict(struck)}. 0 lost, 0 left behind"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
