# SPDX-License-Identifier: Apache-2.0
"""Pushers and collectors on one object store are killed and stopped at random moments while a writer saves.

What must hold all along: a snapshot whose push has returned is there until a collector may drop it, the
newest snapshot can be pulled and holds every byte, and nothing that a snapshot names is lost. At the end,
after one collection, nothing is left that no snapshot names.

Half of the collectors call pushes dead that are alive. Such a push starts again, and its work is not lost.

With --engine s3 or rados the object store is a Ceph that this test starts. Its gateway is killed and started
again meanwhile, and its OSD is stopped for some time.

With --mutation NAME a worker makes a mistake, which the storm must find. --mutations does all of them.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import harness
import mini_ceph

KEEP = 3
# The largest tensors. A push without a file of 1 MiB relies on the fence, any other opens an attempt.
SMALL, LARGE = 256 << 10, 4 << 20
OF_COLLECTORS = ("reads-roots-first", "makes-no-fence")
OF_PUSHES = ("ignores-fence", "ignores-attempts")
# The pushes that a mistake concerns. The others are of all sizes.
SIZES = {"makes-no-fence": [SMALL], "ignores-fence": [SMALL], "ignores-attempts": [LARGE]}
UNKNOWN = 2


class Violation(Exception):
    """The storm has found what must not be."""


class Writer:
    """A process that holds the store open and saves."""

    def __init__(self, store, tensor_bytes):
        self.process = subprocess.Popen(
            [harness.program("store_tool"), str(store), str(tensor_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer()
        self.step = 0

    def answer(self):
        line = self.process.stdout.readline()
        assert line.startswith("ok"), line

    def do(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        self.answer()

    def save(self):
        self.step += 1
        self.do(f"save {self.step} {self.step}")
        if self.step > 4:
            self.do(f"drop {self.step - 4}")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Storm:
    def __init__(self, folder, url, seed, mutation, tensor_bytes, ceph=None):
        self.folder, self.url, self.tensor_bytes = folder, url, tensor_bytes
        self.rng = random.Random(seed)
        self.mutation = mutation
        self.ceph = ceph
        self.faults = 0  # of the object store itself
        self.store = folder / "store"
        harness.varve(self.store, "init")
        self.writer = Writer(self.store, tensor_bytes)
        self.newest = 0  # that a push has reported
        self.attempts = self.killed = 0
        self.working = set()

    def start(self, *arguments):
        self.attempts += 1
        worker = subprocess.Popen(
            [harness.program("remote_worker"), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.working.add(worker)
        return worker

    def close(self):
        """Ends all processes. After a violation some still work in the folder."""
        for worker in self.working:
            worker.kill()
            worker.communicate()
        self.writer.close()

    def round(self):
        """A save, then two pushers and a collector at once, some of which die or sleep."""
        self.writer.save()
        collect = ["collect", self.url, KEEP]
        if self.rng.random() < 0.5:
            collect.append("closes-living")
        if self.mutation in OF_COLLECTORS:
            collect.append(self.mutation)
        push = ["push", self.store, self.url]
        if self.mutation in OF_PUSHES:
            push.append(self.mutation)
        workers = []
        for worker in self.rng.sample([push, collect, push], 3):
            workers.append(self.start(*worker))
            time.sleep(self.rng.random() * 0.04)  # so that any may come in the middle of another
        if self.ceph is not None and self.rng.random() < 0.2:
            self.harm()
        if self.rng.random() < 0.5:
            self.writer.save()
        killed = set()
        for worker in self.rng.sample(workers, len(workers)):
            time.sleep(self.rng.random() * 0.03)
            fate = self.rng.random()
            if fate < 0.4:
                worker.kill()
                killed.add(worker)
            elif fate < 0.6:
                worker.send_signal(signal.SIGSTOP)
                self.run_alone("push", self.store, self.url)
                self.run_alone("collect", self.url, KEEP)
                worker.send_signal(signal.SIGCONT)
        self.killed += len(killed)
        for worker in workers:
            self.judge(worker, killed)
        self.judge_state()

    def harm(self):
        """The gateway is killed and comes back, or the OSD stands still."""
        self.faults += 1
        if self.url.startswith("s3:") and self.rng.random() < 0.5:
            self.ceph.restart_gateway()
            return
        self.ceph.signal("osd0", signal.SIGSTOP)
        time.sleep(self.rng.random() * 2)
        self.ceph.signal("osd0", signal.SIGCONT)

    def run_alone(self, *arguments):
        self.judge(self.start(*arguments), set())

    def judge(self, worker, killed):
        out, err = worker.communicate(timeout=250)
        self.working.remove(worker)
        if worker not in killed and worker.returncode not in (0, UNKNOWN):
            raise Violation(f"{worker.args} exited {worker.returncode}: {err}")
        for line in out.splitlines():
            if line.startswith("pushed "):
                self.newest = max(self.newest, int(line.split()[1]))

    def state(self):
        state = {"snapshot": [], "open": [], "lost": [], "leaked": []}
        try:
            lines = harness.run("remote_worker", "state", self.url).splitlines()
        except AssertionError as error:
            raise Violation(str(error)) from error
        for line in lines:
            what, value = line.split(" ", 1)
            state[what].append(value)
        return state

    def judge_state(self):
        state = self.state()
        if state["lost"]:
            raise Violation(f"lost: {state['lost']}")
        newest = int(state["snapshot"][-1]) if state["snapshot"] else 0
        if newest < self.newest:
            raise Violation(f"snapshot {self.newest} was pushed, the newest is {newest}")

    def judge_pull(self):
        if not self.newest:
            return
        copy = self.folder / "copy"
        done = subprocess.run(
            [harness.program("remote_worker"), "pull", self.url, str(copy)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise Violation(f"the newest snapshot cannot be pulled: {done.stderr}")
        for step in harness.varve_json(copy, "steps"):
            answer = self.ask(copy, f"verify {step['step']}")
            if answer != "ok":
                raise Violation(f"step {step['step']}: {answer}")
        shutil.rmtree(copy)

    def ask(self, store, command):
        out = harness.run("store_tool", store, self.tensor_bytes, input=command + "\n")
        return out.splitlines()[1]

    def finish(self):
        self.run_alone("push", self.store, self.url)
        self.run_alone("collect", self.url, KEEP)
        state = self.state()
        if state["open"] != ["0"]:
            raise Violation(f"attempts are still open: {state['open']}")
        for what in ("lost", "leaked"):
            if state[what]:
                raise Violation(f"{what} at the end: {state[what]}")
        if len(state["snapshot"]) > KEEP:
            raise Violation(f"too many snapshots are left: {state['snapshot']}")
        self.judge_pull()


def run_storms(attempts, seed, mutation, url_of=None, ceph=None):
    """The same number of attempts with small pushes and with large ones. Returns what was wrong, or nothing.

    url_of: makes the URL of a place in the object store from its name. Without it, a folder is used.
    """
    sizes = SIZES.get(mutation, [SMALL, LARGE])
    for size in sizes:
        url = url_of(f"storm{size}") if url_of else None
        violation = run_storm(attempts // len(sizes), seed, mutation, size, url, ceph)
        if violation:
            return violation
    return ""


def run_storm(attempts, seed, mutation, tensor_bytes, url, ceph):
    with harness.clean_folder() as folder:
        os.environ["TMPDIR"] = str(folder)  # a push that is killed leaves its temporary folder
        storm = Storm(folder, url or f"file://{folder}/remote", seed, mutation, tensor_bytes, ceph)
        try:
            rounds = 0
            while storm.attempts < attempts:
                storm.round()
                rounds += 1
                if rounds % 5 == 0:
                    storm.judge_pull()
            storm.finish()
        except Violation as violation:
            return str(violation)
        finally:
            storm.close()
        print(
            f"tensors of {tensor_bytes >> 10} KiB: {storm.attempts} attempts, {storm.killed} killed, "
            f"{storm.faults} faults of the object store, "
            f"snapshot {storm.newest}: sound",
            flush=True,
        )
    return ""


def run_mutations(arguments, names):
    """Each mistake must be found. Returns the exit code."""
    missed = 0
    for name in names:
        violation = run_storms(arguments.attempts, arguments.seed, name)
        print(f"{name}: {'found: ' + violation if violation else 'NOT FOUND'}", flush=True)
        missed += not violation
    return 1 if missed else 0


def run_on(engine, arguments):
    if engine == "file":
        return run_storms(arguments.attempts, arguments.seed, None)
    with mini_ceph.mini_ceph() as ceph:
        os.environ.update(ceph.s3_environment())
        os.environ["CEPH_CONF"] = str(ceph.config)
        url_of = ceph.s3_url if engine == "s3" else "rados://varve/{}".format
        return run_storms(arguments.attempts, arguments.seed, None, url_of, ceph)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--engine", choices=["file", "s3", "rados"], default="file")
    parser.add_argument("--mutation", choices=OF_COLLECTORS + OF_PUSHES)
    parser.add_argument("--mutations", action="store_true")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, engine {arguments.engine}", flush=True)
    if arguments.mutation or arguments.mutations:
        names = OF_COLLECTORS + OF_PUSHES if arguments.mutations else (arguments.mutation,)
        return run_mutations(arguments, names)
    lacking = mini_ceph.missing()
    if arguments.engine != "file" and lacking:
        print(f"not run: {' '.join(lacking)} are missing (scripts/setup --object-stores)")
        return harness.SKIPPED
    violation = run_on(arguments.engine, arguments)
    print(violation)
    return 1 if violation else 0


if __name__ == "__main__":
    sys.exit(main())
