# SPDX-License-Identifier: Apache-2.0
"""Every verb of the command with too little of something: disk, quota, descriptors, address space or threads.

How much there is is drawn anew each time. The verb ends with 0 and has then done all of its work, or with
exit code 1 and a line that names what is lacking. No signal ends it, unless RocksDB or libstdc++ gets no
memory where it cannot go on. Once there is enough again, the same verb works, the store checks clean with its
data, and nothing of the verb is left behind.
"""

import argparse
import collections
import concurrent.futures
import os
import random
import shutil
import signal
import subprocess
import sys

import harness
import scarcity
import store_verbs

DISK_MIB = 48
FEW_DESCRIPTORS = range(5, 25)

# A verb that only reads needs none of these.
OF_WRITERS = ("disk", "quota")

# Verbs whose next run goes on with what a run has left that failed.
USED_BY_THE_NEXT = ("backup", "push", "pull new", "pull")


class Scarce(store_verbs.Run):
    """One verb that gets little of a resource."""

    def __init__(self, template, verb, resource, rng, folder, num_descriptors=None):
        super().__init__(template, verb, folder)
        self.resource, self.rng = resource, rng
        self.num_descriptors = num_descriptors  # None: drawn

    def limits(self):
        """Words of a shell that limit what it becomes, and what the environment adds."""
        draw = self.rng.choice
        if self.resource == "disk":
            left = draw([0, 0, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20])
            room = os.statvfs(self.folder)
            size = max(0, room.f_bavail * room.f_frsize - left)
            with open(self.folder / "filler", "wb") as file:
                if size:
                    os.posix_fallocate(file.fileno(), 0, size)
            return "", {}, f"{left} bytes free"
        if self.resource == "quota":
            left = draw([0, 0, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20])
            return (
                "",
                {
                    "LD_PRELOAD": harness.program("libvarve_quota.so"),
                    "VARVE_QUOTA_FOLDER": str(self.folder),
                    "VARVE_QUOTA_BYTES": str(harness.disk_bytes(self.folder) + left),
                },
                f"{left} bytes of quota left",
            )
        if self.resource == "descriptors":
            number = self.num_descriptors or self.rng.randrange(5, 70)
            return f"ulimit -n {number};", {}, f"{number} descriptors"
        if self.resource == "threads":
            number = self.rng.randrange(draw([4, 10, 20]))
            more = {
                "LD_PRELOAD": harness.program("libvarve_threads.so"),
                "VARVE_MOST_THREADS": str(number),
            }
            return "", more, f"{number} threads"
        # More than half of the verbs need between 30 and 60 MiB. An allocator that finds 128 MiB free
        # reserves them for a thread, so that a verb with 160 MiB may lack them elsewhere.
        kib = self.template.least_kib + self.rng.randrange(0, draw([32, 64, 192]) << 10)
        return (
            f"ulimit -v {kib};",
            {"LD_PRELOAD": harness.program("libvarve_abort_site.so")},
            f"{kib} KiB of address space",
        )

    def run(self):
        """Returns how the verb ended: "done", "refused" or "aborted"."""
        self.before = self.left()
        limit, more, amount = self.limits()
        self.where = f"{self.verb.name} with {amount}, in {self.folder}"
        done = subprocess.run(
            ["bash", "-c", f'{limit} exec "$@"', "bash", *self.command],
            capture_output=True,
            text=True,
            env=self.environment | more,
        )
        (self.folder / "filler").unlink(missing_ok=True)
        self.where += f": exit {done.returncode}: {done.stderr}"
        if done.returncode == 0:
            self.expect_whole()
            self.expect_answer(done.stdout)
            return "done"
        if self.resource == "memory" and done.returncode in (-signal.SIGABRT, -signal.SIGSEGV):
            assert scarcity.ended_by_library(done.stderr), "varve ended by a signal"
            self.expect_kept()
            return "aborted"
        assert done.returncode == harness.FAILED, "another exit code than 1"
        assert any(word in done.stderr for word in scarcity.WORDS[self.resource]), (
            "it names another cause"
        )
        assert done.stderr.startswith("varve: ") and done.stderr.count("\n") == 1, "not one line"
        if self.verb.name not in USED_BY_THE_NEXT:
            self.expect_nothing_left()
        self.expect_kept()
        return "refused"

    def expect_nothing_left(self):
        left = self.left() - self.before
        assert not left, f"left behind: {left}"

    def left(self):
        return {
            path
            for name in ("incoming/*", "*.tmp", ".varve-*", "store~repair")
            for path in self.folder.rglob(name)
        }

    def again(self):
        done = subprocess.run(self.command, capture_output=True, text=True, env=self.environment)
        self.where += f"\nagain: exit {done.returncode}: {done.stderr}"
        assert done.returncode == 0 or done.returncode in store_verbs.REFUSED
        if done.returncode == 0:
            self.expect_answer(done.stdout)
        self.expect_whole()
        self.expect_nothing_left()


def one(template, verb, resource, rng, folder, num_descriptors=None):
    folder.mkdir(parents=True)
    scarce = Scarce(template, verb, resource, rng, folder, num_descriptors)
    scarce.where = verb.name
    try:
        ended = scarce.run()
        if ended != "done":
            scarce.again()
    except (AssertionError, ValueError, KeyError) as error:
        raise AssertionError(f"{scarce.where}: {error}") from error
    shutil.rmtree(folder)
    return ended


def on_small_disks(work, folder):
    """Runs `work` with a folder on a small disk of its own. Raises PermissionError where it may not."""
    folder.mkdir()
    with harness.mounted(folder, "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs"):
        return work(folder / "run")


def main():
    parser = argparse.ArgumentParser()
    full_size = "VARVE_FULL_SIZE" in os.environ
    parser.add_argument("--rounds", type=int, default=40 if full_size else 1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--resource", default="")
    options = parser.parse_args()
    chosen = [verb for verb in store_verbs.verbs() if options.only in verb.name]
    refused, tried, num_aborted = collections.Counter(), collections.Counter(), 0
    needy = collections.Counter()  # runs of verbs that need the resource
    with harness.clean_folder() as folder:
        template = store_verbs.Template(folder)
        store_verbs.run_unhindered(template, chosen, folder / "unhindered")
        template.least_kib = scarcity.least_kib()
        resources = [name for name in scarcity.WORDS if options.resource in name]
        try:
            on_small_disks(lambda _: None, folder / "probe")
        except PermissionError as error:
            print(f"not run with a full disk: {error}", file=sys.stderr)
            resources.remove("disk")

        def run(i):
            verb = chosen[i % len(chosen)]
            resource = resources[i // len(chosen) % len(resources)]
            rng = random.Random(f"{options.seed} {i}")
            mine = folder / f"run{i}"
            needs = not (verb.reads and resource in OF_WRITERS)
            if resource != "disk":
                return resource, needs, one(template, verb, resource, rng, mine)
            return (
                resource,
                needs,
                on_small_disks(lambda disk: one(template, verb, resource, rng, disk), mine),
            )

        def run_with_few(i):
            verb, number = few[i]
            return one(template, verb, "descriptors", random.Random(i), folder / f"few{i}", number)

        # A repair opens files in many places, and takes a file that it cannot open for no lost one.
        few = [
            (verb, number)
            for verb in chosen
            if "descriptors" in resources and (full_size or verb.name.startswith("repair"))
            for number in FEW_DESCRIPTORS
        ]
        total = options.rounds * len(chosen) * len(resources)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            assert not few or "refused" in list(pool.map(run_with_few, range(len(few))))
            for resource, needs, ended in pool.map(run, range(total)):
                tried[resource] += 1
                needy[resource] += needs
                refused[resource] += ended == "refused"
                num_aborted += ended == "aborted"
    print(
        f"each number of descriptors from {FEW_DESCRIPTORS[0]} to {FEW_DESCRIPTORS[-1]}: "
        f"{len(few)} runs; refused: {dict(refused)} of {dict(tried)}, seed {options.seed}: 0 half done, "
        f"{num_aborted} ended by a library without memory, 0 by other signals"
    )
    for resource in resources:
        assert len(chosen) < 10 or refused[resource] * 5 > needy[resource], f"too few of {resource}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
