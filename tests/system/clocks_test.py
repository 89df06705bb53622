# SPDX-License-Identifier: Apache-2.0
"""Clocks that jump by years, back and forth, at each look (tests/support/clock_preload.cc).

Nothing waits for a time that is far away, no save fails, every step reads back bit for bit, and retention by
age never takes the newest step.
"""

import os
import subprocess
import sys
import unittest

import harness
import store_verbs

PATIENCE = 120  # seconds, only so that the test ends
MODEL = ["--num-layers", 1, "--hidden-size", 32, "--num-attention-heads", 2, "--seq-length", 16]


def jumping(seed):
    return os.environ | {
        "LD_PRELOAD": harness.program("libvarve_clock.so"),
        "VARVE_CLOCK_SEED": str(seed),
    }


class ClocksTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"

    def varve(self, *arguments, seed=1, **options):
        return harness.varve(self.store, *arguments, env=jumping(seed), timeout=PATIENCE, **options)

    def writer(self, seed=1):
        tool = harness.StoreTool(self.store, store_verbs.PLAN, env=jumping(seed))
        self.assertEqual(tool.opened, "ok")
        return tool

    def steps(self):
        return [s["step"] for s in harness.varve_json(self.store, "steps")]

    def test_the_clock_does_jump(self):
        with self.writer() as tool:
            for step in range(6):
                tool.must(f"save {step} {step}")
        years = {s["created"][:4] for s in harness.varve_json(self.store, "steps")}
        self.assertGreater(len(years), 2, years)

    def test_saves_drops_and_reads(self):
        for seed in range(3):
            with self.writer(seed) as tool:
                for step in range(10 * seed, 10 * seed + 10):
                    tool.must(f"save {step} {step}")
                tool.must(f"drop {10 * seed}")
                tool.must("reclaim")
                for step in range(10 * seed + 1, 10 * seed + 10):
                    tool.must(f"verify {step}")
        self.assertTrue(self.varve("check", "--read-data").stdout)
        harness.check(self.store)
        self.assertEqual(len(self.steps()), 27)

    def test_a_writer_answers_requests_in_their_order(self):
        with self.writer() as tool:
            for step in range(1, 8):
                tool.must(f"save {step} {step}")
            for step in (1, 2, 3, 4, 5):
                self.varve("tag", step, "chosen", "--no-wait", seed=step)
            self.varve("metric", 2, "loss=1", seed=9)  # waits, so those before it are applied
            self.varve("drop", 6, seed=10)
            found = {s["step"]: s["tags"] for s in harness.varve_json(self.store, "steps")}
            self.assertEqual([step for step in found if "chosen" in found[step]], [5])
            self.assertNotIn(6, found)
        harness.check(self.store)

    def test_retention_by_age_keeps_the_newest(self):
        for seed in range(4):
            with self.writer(seed) as tool:
                for step in range(20 * seed, 20 * seed + 8):
                    tool.must(f"save {step} {step}")
            newest = self.steps()[-1]
            self.varve("forget", "--keep-within", "1h", seed=seed)
            self.assertIn(newest, self.steps())
            with self.writer(seed) as tool:
                tool.must(f"verify {newest}")
        harness.check(self.store)

    def test_backup_push_pull_and_collecting(self):
        with self.writer() as tool:
            for step in (1, 2, 3):
                tool.must(f"save {step} {step}")
            url = f"file://{self.folder / 'remote'}"
            self.varve("push", url, seed=2)
            tool.must("save 4 4")
            self.varve("push", url, seed=3)
            self.varve("backup", self.folder / "backup", seed=4)
        for seed in range(4):
            collect = [harness.program("varve"), "-s", url, "reclaim"]
            harness.command(*collect, env=jumping(seed), timeout=PATIENCE)
        pulled = self.folder / "pulled"
        harness.varve(pulled, "pull", url, env=jumping(5), timeout=PATIENCE)
        for copy in (pulled, self.folder / "backup"):
            harness.check(copy)
            self.assertEqual(len(harness.varve_json(copy, "steps")), 4)

    def test_ranks_of_a_group_save_and_wait(self):
        """Two ranks, each with a clock of its own that jumps."""
        command = [
            *(harness.program("gpt_train"), "--dp", 2, "--train-iters", 6, "--threads", 1, *MODEL),
            *("--micro-batch-size", 2, "--lr-decay-iters", 6, "--save", self.store),
            *("--save-interval", 2, "--max-checkpoint-keep", 2, "--load", self.store),
        ]
        port = harness.free_port()
        ranks = []
        for rank in range(2):
            environment = jumping(rank + 1) | {
                "WORLD_SIZE": "2",
                "RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_RUN_ID": str(self.folder),
            }
            with open(self.folder / f"rank-{rank}.log", "wb") as log:
                ranks.append(
                    subprocess.Popen(
                        list(map(str, command)), env=environment, stdout=log, stderr=log
                    )
                )
        for rank, process in enumerate(ranks):
            try:
                code = process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                code = f"none after {PATIENCE} s"
                process.kill()
            said = (self.folder / f"rank-{rank}.log").read_text()
            self.assertEqual(code, 0, f"rank {rank}: {said}")
        self.assertEqual(self.steps(), [4, 6])
        harness.check(self.store)


if __name__ == "__main__":
    sys.exit(unittest.main())
