# SPDX-License-Identifier: Apache-2.0
"""The command on a disk that is full, over its quota or fails (EIO) at its calls.

The calls that fail are one, all from that one on, or every third. Some writes are short. Some calls that
read fail.

The command never dies by a signal. The store that it leaves passes a full check. Every step that was not
dropped is there with its bytes. The same command works once the fault has gone.
VARVE_FULL_SIZE=1 takes every call, else only some. failing_io.h says which calls these are.
"""

import errno
import os
import random
import shutil
import sys
import unittest

import harness
import safetensors_bytes as files

FOR_GOOD = 1_000_000
FULL_SIZE = "VARVE_FULL_SIZE" in os.environ
# Once, for good, coming and going, short writes, and reads that fail.
KINDS = [
    {"ERRNO": error, "COUNT": count, "EVERY": every}
    for error in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
    for count, every in ((1, 1), (FOR_GOOD, 1), (FOR_GOOD, 3))
]
KINDS += [{"CALL": "writes", "SHORT": 1, "COUNT": count, "ERRNO": 0} for count in (1, FOR_GOOD)]
KINDS += [{"CALL": "writes", "SHORT": 1, "COUNT": FOR_GOOD, "ERRNO": errno.ENOSPC}]
KINDS += [{"CALL": "reads", "COUNT": count, "ERRNO": errno.EIO} for count in (1, FOR_GOOD)]


class CommandFaultsTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.template = self.folder / "template"
        self.work = self.folder / "work"
        self.store = self.work / "store"
        rng = random.Random(7)
        same = files.random_tensor(rng, "F32", [5_000])
        self.content = {}
        for step in (1, 2, 3, 4):
            self.content[step] = {"same": same, "w": files.random_tensor(rng, "F32", [20_000])}
            files.write(self.input(step), self.content[step])
        for step in (1, 2, 3):
            harness.varve(self.template, "import", self.input(step), "--init", "--step", step)
        harness.varve(self.template, "tag", "1", "first")

    def input(self, step):
        return self.folder / f"step{step}.safetensors"

    def faulty(self, plan, *arguments):
        """Runs the command with the plan. Returns its exit code, what it said, and what failed last."""
        report = self.folder / "failed"
        report.unlink(missing_ok=True)
        environment = dict(
            os.environ,
            LD_PRELOAD=harness.program("libvarve_failing_io.so"),
            VARVE_FAIL_PATH=str(self.work),
            VARVE_FAIL_REPORT=str(report),
            **{f"VARVE_FAIL_{name}": str(value) for name, value in plan.items()},
        )
        command = [harness.program("varve"), "-s", str(self.store), *map(str, arguments)]
        done = harness.subprocess.run(command, capture_output=True, text=True, env=environment)
        return done.returncode, done.stdout + done.stderr, report.read_text()

    def assert_holds(self, step, where, content=None):
        out = self.folder / "out.safetensors"
        out.unlink(missing_ok=True)
        harness.varve(self.store, "export", step, "-o", out)
        self.assertEqual(files.read(out), content or self.content[step], where)

    def steps(self):
        return {s["step"] for s in harness.varve_json(self.store, "steps") if s["run"] == "main"}

    def rounds(self, stride):
        """Each fault to try, with the call that it strikes. send() says when there are no more."""
        for kind in KINDS:
            first = 0 if FULL_SIZE else KINDS.index(kind) * 5 % stride
            while True:
                more = yield {"FIRST": first, **kind}
                if not more:
                    break
                first += 1 if FULL_SIZE else 8 * stride

    def sweep(self, arguments, *, kept, done, stride, fresh=False):
        """`kept`: steps that always stay. `done`: asserts that the verb has done its work."""
        tried = 0
        rounds = self.rounds(stride)
        plan = next(rounds)
        while plan is not None:
            shutil.rmtree(self.work, ignore_errors=True)
            self.work.mkdir()
            if not fresh:
                shutil.copytree(self.template, self.store)
            code, said, failed = self.faulty(plan, *arguments)
            where = f"{plan}: {failed}: exit {code}: {said}"
            self.assertGreaterEqual(code, 0, where)
            if code == 0:
                done(where)
            if failed:
                tried += 1
                self.assert_usable(arguments, kept, done, where, fresh)
            try:
                plan = rounds.send(bool(failed))
            except StopIteration:
                plan = None
        print(f"{arguments[0]}: {tried} faults", file=sys.stderr)
        self.assertGreaterEqual(tried, 8)

    def assert_usable(self, arguments, kept, done, where, fresh):
        try:
            if not fresh:
                harness.check(self.store)
                self.assertLessEqual(kept, self.steps(), where)
                for step in kept:
                    self.assert_holds(step, where)
            again = harness.subprocess.run(
                [harness.program("varve"), "-s", str(self.store), *map(str, arguments)],
                capture_output=True,
                text=True,
            )
            # A change that the disk failed to confirm may have been made.
            self.assertIn(
                again.returncode, (0, harness.EXISTS, harness.NO_STEP), f"{where}\n{again.stderr}"
            )
            done(f"{where}\nagain: {again.stderr}")
            harness.check(self.store)
        except AssertionError as error:
            raise AssertionError(f"{where}\n{error}") from error

    def imported(self, where):
        self.assertIn(4, self.steps(), where)
        self.assert_holds(4, where)

    def test_import(self):
        self.sweep(
            ["import", self.input(4), "--step", 4], kept={1, 2, 3}, done=self.imported, stride=11
        )

    def test_import_into_a_new_store(self):
        self.sweep(
            ["import", self.input(4), "--step", 4, "--init"],
            kept=set(),
            done=self.imported,
            stride=29,
            fresh=True,
        )

    def test_import_that_replaces(self):
        def replaced(where):
            self.assert_holds(3, where, self.content[4])

        self.sweep(
            ["import", self.input(4), "--step", 3, "--on-existing", "replace"],
            kept={1, 2},
            done=replaced,
            stride=29,
        )

    def test_fork(self):
        def forked(where):
            runs = {s["run"] for s in harness.varve_json(self.store, "steps")}
            self.assertEqual(runs, {"main", "other"}, where)

        self.sweep(["fork", "main", "other", "--at", "2"], kept={1, 2, 3}, done=forked, stride=29)

    def test_export(self):
        out = self.work / "exported.safetensors"

        def exported(where):
            self.assertEqual(files.read(out), self.content[2], where)

        self.sweep(["export", "2", "-o", out, "--force"], kept={1, 2, 3}, done=exported, stride=2)

    def test_drop(self):
        self.sweep(
            ["drop", "2"],
            kept={1, 3},
            done=lambda where: self.assertEqual(self.steps(), {1, 3}, where),
            stride=29,
        )

    def test_rewind(self):
        self.sweep(
            ["rewind", "main", "--to", "2"],
            kept={1, 2},
            done=lambda where: self.assertEqual(self.steps(), {1, 2}, where),
            stride=29,
        )


if __name__ == "__main__":
    unittest.main()
