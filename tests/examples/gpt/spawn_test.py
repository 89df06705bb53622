# SPDX-License-Identifier: Apache-2.0
"""gpt_train on several ranks that are processes: over sockets, and over MPI where there is mpirun.

What the ranks compute is tested by ranks_test.cc; this is about how they are started and end.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

import harness

MODEL = """--fp32 --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --threads 1
           --micro-batch-size 4""".split()

PREEMPTED = 75


def command(*arguments):
    return [harness.program("gpt_train"), *MODEL, *map(str, arguments)]


def losses(output):
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)", output, re.MULTILINE)]


def without_times(output):
    return re.sub(r" ms \S+", "", output)


def children_of(pid):
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text(encoding="utf-8").split()]


class GptSpawnTest(unittest.TestCase):
    def setUp(self):
        self.alone = harness.command(*command("--train-iters", 5))
        self.assertEqual(len(losses(self.alone)), 5)

    def is_like_alone(self, output):
        self.assertEqual(len(losses(output)), 5, output)
        for ours, alone in zip(losses(output), losses(self.alone), strict=False):
            self.assertAlmostEqual(ours, alone, delta=1e-4 * alone)

    def test_layouts(self):
        for ranks, *layout in (
            (2, "--tp", 2),
            (2, "--pp", 2),
            (2,),
            (2, "--zero"),
            (8, "--tp", 2, "--pp", 2, "--dp", 2, "--zero"),
        ):
            with self.subTest(ranks=ranks, layout=layout):
                run = command("--train-iters", 5, "--spawn", ranks, *layout)
                first, second = harness.command(*run), harness.command(*run)
                self.is_like_alone(first)
                self.assertEqual(without_times(first), without_times(second))

    def test_ranks_started_by_others(self):
        environment = os.environ | {
            "WORLD_SIZE": "1",
            "RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
        }
        one = harness.command(*command("--train-iters", 5), env=environment)
        self.assertEqual(without_times(one), without_times(self.alone))

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_mpi(self):
        mpirun = ["mpirun", "-n", 4, "--allow-run-as-root", "--oversubscribe"]
        done = subprocess.run(
            [*map(str, mpirun), *command("--train-iters", 5, "--tp", 2, "--pp", 2)],
            capture_output=True,
            text=True,
            check=False,
        )
        if "built without MPI" in done.stderr:
            self.skipTest("gpt_train was built without MPI")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.is_like_alone(done.stdout)

    def test_each_rank_dumps_its_part(self):
        with harness.clean_folder() as folder:
            dump = f"model.transformer.h.1.mlp.c_fc.weight@2={folder}/dump"
            harness.command(
                *command(
                    "--train-iters", 2, "--spawn", 4, "--tp", 2, "--pp", 2, "--dump-tensor", dump
                )
            )
            files = {file.name: file.stat().st_size for file in folder.iterdir()}
            half = 4 * 64 * 64 * 4 // 2
            self.assertEqual(files, {"dump.2": half, "dump.3": half})  # of the second stage

    def start(self, *arguments):
        """Starts a long training and returns it with the pids of its ranks, at its third step."""
        trainer = subprocess.Popen(
            command("--train-iters", 1_000_000, *arguments),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.addCleanup(trainer.kill)
        while not trainer.stdout.readline().startswith("step 3 "):
            self.assertIsNone(trainer.poll())
        return trainer, children_of(trainer.pid)

    def test_killed_rank_is_named_by_the_others(self):
        trainer, ranks = self.start("--spawn", 4, "--tp", 2, "--dp", 2)
        os.kill(ranks[3], signal.SIGKILL)
        _, errors = trainer.communicate(timeout=280)
        self.assertIn(trainer.returncode, (1, 128 + signal.SIGKILL))
        self.assertEqual(errors.count("gpt_train: unavailable: "), 3, errors)
        self.assertIn("rank 3 is gone", errors)
        self.assertIn("gpt_train: rank 3 was killed by signal 9", errors)
        self.assertEqual(errors.count("; killing those that are left in 10 s\n"), 1, errors)

    def test_signal_to_one_rank_stops_all_with_a_save(self):
        with harness.clean_folder() as folder:
            saving = ["--save", folder / "root", "--save-interval", 1_000_000]
            trainer, ranks = self.start("--spawn", 4, "--tp", 2, "--dp", 2, *saving)
            os.kill(ranks[2], signal.SIGUSR1)
            output, errors = trainer.communicate(timeout=280)
            self.assertEqual(trainer.returncode, PREEMPTED, errors)
            last = ["3", *re.findall(r"^step (\d+) ", output, re.MULTILINE)][-1]  # 3 was read
            steps = harness.varve_json(folder / "root", "steps")
            self.assertEqual([entry["step"] for entry in steps], [int(last)])
            harness.check(folder / "root")

    def test_ranks_end_with_what_started_them(self):
        trainer, ranks = self.start("--spawn", 2)
        trainer.kill()
        trainer.communicate()
        while any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks):
            time.sleep(0.05)

    def test_what_cannot_be(self):
        for arguments, message in (
            (["--spawn", 3, "--tp", 2], "3 ranks are not --tp 2 x --pp 1 x --dp 1"),
            (["--tp", 2], "1 ranks are not --tp 2 x --pp 1 x --dp 1"),
            (["--spawn", 3], "3 data parallel ranks cannot share the 4 samples of a step equally"),
            (["--spawn", 3, "--pp", 3], "3 stages cannot share 2 layers"),
        ):
            with self.subTest(arguments=arguments):
                done = subprocess.run(
                    command("--train-iters", 1, *arguments),
                    capture_output=True,
                    text=True,
                    check=False,
                )
                self.assertEqual(done.returncode, 1)
                self.assertIn(message, done.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main())
