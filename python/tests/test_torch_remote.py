# SPDX-License-Identifier: Apache-2.0
"""Checkpointer(remote=...): the disk of a training is lost, and another host goes on. Skipped where torch is
not installed. The object store is the folder of a file:// URL."""

import logging
import shutil
import subprocess
import sys
import textwrap
import time
import unittest

import varve
from support import StoreTest, require

require("torch")
import torch  # noqa: E402
import varve.torch  # noqa: E402

torch.set_num_threads(1)
STEPS = 12


class Training:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 200), torch.nn.Dropout(0.1), torch.nn.Linear(200, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer}

    def step(self):
        loss = self.model(torch.randn(8, 16)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


class RemoteCheckpointerTest(StoreTest):
    def setUp(self):
        super().setUp()
        self.url = f"file://{self.folder}/place"

    def train(self, host, num_steps, seed=1, **options):
        """Returns the step to go on from, the losses by step, and the last push."""
        training, losses = Training(seed), {}
        options.setdefault("remote", self.url)
        with varve.torch.Checkpointer(self.folder / host, **options) as ckpt:
            start = ckpt.restore(**training.parts())
            for step in range(0 if start is None else start + 1, num_steps):
                losses[step] = training.step()
                ckpt.after_step(step, metrics={"loss": losses[step]})
        return start, losses

    def test_another_host_goes_on_with_the_same_losses(self):
        _, whole = self.train("whole", STEPS, remote=None)
        _, before = self.train("a", 7, remote_interval=3)
        shutil.rmtree(self.folder / "a")
        start, after = self.train("b", STEPS, seed=99, remote_interval=3)
        self.assertEqual(start, 6)  # close pushes the last step, too
        self.assertEqual({**before, **after}, whole)

    def test_snapshots_that_are_not_kept_go(self):
        self.train("a", STEPS, remote_keep=2)
        self.assertLessEqual(len(varve.snapshots(self.url)), 2)
        with varve.open(self.url) as store:
            self.assertEqual(store.steps()[-1].step, STEPS - 1)

    def test_the_last_push_says_what_it_did(self):
        training = Training(1)
        with (
            varve.torch.Checkpointer(self.path, remote=self.url, remote_interval=100) as ckpt,
            self.assertLogs("varve", "INFO") as logs,
        ):
            ckpt.restore(**training.parts())
            self.assertIsNone(ckpt.last_push)
            ckpt.after_step(0)
            ckpt.close()  # the last save is due
        self.assertEqual(len(logs.records), 1, logs.output)
        self.assertRegex(logs.output[0], "INFO:varve:pushed step 0 as snapshot 1, ")

    def test_a_step_that_only_the_object_store_has_is_loaded(self):
        training = Training(1)
        states = {}
        with varve.torch.Checkpointer(self.path, remote=self.url) as ckpt:
            ckpt.restore(**training.parts())
            for step in range(4):
                training.step()
                states[step] = training.model[0].weight.detach().clone()
                ckpt.after_step(step)
        with varve.open(self.path, "a") as store:
            store.drop([1])
        other = Training(2)
        with varve.torch.Checkpointer(self.path, remote=self.url) as ckpt:
            self.assertNotIn(1, ckpt.store)
            with self.assertRaisesRegex(varve.NotFoundError, "9"):
                ckpt.restore(**other.parts(), step=9)
            self.assertEqual(ckpt.restore(**other.parts(), step=1), 1)
            self.assertTrue(torch.equal(other.model[0].weight, states[1]))

    def test_an_object_store_that_is_down_fails_no_training(self):
        self.train("whole", 3)
        place = self.folder / "place"
        place.rename(self.folder / "away")
        place.write_text("in the way")
        training = Training(1)
        with self.assertLogs("varve", "WARNING") as logs:
            ckpt = varve.torch.Checkpointer(
                self.folder / "whole", remote=self.url, remote_close_timeout=0.5
            )
            start = ckpt.restore(**training.parts())
            self.assertEqual(start, 2)
            training.step()
            ckpt.after_step(3)
            ckpt.wait()
            while ckpt.last_push is None:
                time.sleep(0.01)
            with self.assertRaises(varve.Error):
                ckpt.close()
        self.assertIn("push", logs.output[0])
        with varve.open(self.folder / "whole") as store:
            self.assertEqual(store["latest"].step, 3)
        # The next job sends what is missing.
        place.unlink()
        (self.folder / "away").rename(place)
        self.train("whole", 4)
        with varve.open(self.url) as store:
            self.assertEqual(store["latest"].step, 3)

    def test_options(self):
        for options, pattern in (
            ({"remote": "gs://bucket"}, "gs"),
            ({"remote_interval": 0}, "interval"),
            ({"remote_close_timeout": float("nan")}, "remote_close_timeout"),
        ):
            with self.subTest(pattern), self.assertRaisesRegex(varve.InvalidArgumentError, pattern):
                varve.torch.Checkpointer(self.path, **{"remote": self.url, **options})


# What a script does before its end: arguments are the folder and the URL.
BEGIN = """
import gc, logging, os, sys, threading, torch, varve.torch
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Linear(1000, 1000)
def step(number):
    ckpt.before_optimizer_step()
    with torch.no_grad():
        model.weight += 1
    ckpt.after_step(number)
def start(**options):
    global ckpt
    ckpt = varve.torch.Checkpointer(sys.argv[1], remote=sys.argv[2], **options)
    ckpt.restore(model=model)
"""


class EndTest(StoreTest):
    """The process of a checkpointer that nobody closes ends as it would without one."""

    def setUp(self):
        super().setUp()
        self.url = f"file://{self.folder}/place"

    def run_script(self, code):
        return subprocess.run(
            [sys.executable, "-c", BEGIN + textwrap.dedent(code), str(self.path), self.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def check_steps(self, expected):
        for path in (self.path, self.url):
            with varve.open(path) as store:
                self.assertEqual([info.step for info in store.steps()], expected, path)

    def test_the_last_save_is_kept(self):
        for code, status, said in (
            ("", 0, "^$"),
            ("ckpt.wait()", 0, "^$"),
            ("sys.exit(3)", 3, "^$"),
            (
                "raise ValueError('of the training')",
                1,
                "^Traceback(.|\\n)*\nValueError: of the training$",
            ),
        ):
            with self.subTest(code):
                ended = self.run_script(f"start()\nstep(0)\nstep(1)\n{code}")
                self.assertRegex(ended.stderr.strip(), said)
                self.assertEqual(ended.returncode, status)
                self.check_steps([0, 1])
                shutil.rmtree(self.path)
                shutil.rmtree(self.folder / "place")

    def test_what_is_not_pushed_in_time_is_said(self):
        self.run_script("start()\nstep(0)").check_returncode()
        (self.folder / "place").rename(self.folder / "away")
        (self.folder / "place").write_text("in the way")
        ended = self.run_script("start(remote_close_timeout=0.1)\nstep(1)")
        self.assertRegex(ended.stderr, "varve: unreported error .*step 1 is not in file://")
        self.assertEqual(ended.returncode, 0)
        with varve.open(self.path) as store:
            self.assertEqual([info.step for info in store.steps()], [0, 1])

    def test_ctrl_c_ends_the_wait_for_the_last_push(self):
        self.run_script("start()\nstep(0)").check_returncode()
        (self.folder / "place").rename(self.folder / "away")
        (self.folder / "place").write_text("in the way")
        ended = self.run_script("""
            import signal, time
            start()
            step(1)
            ckpt.wait()
            while ckpt.last_push is None:
                time.sleep(0.01)
            try:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                ckpt.close()
            except KeyboardInterrupt:
                sys.exit(5)
            """)
        self.assertNotIn("Traceback", ended.stderr)
        self.assertEqual(ended.returncode, 5)
        with varve.open(self.path, "a") as store:
            self.assertEqual([info.step for info in store.steps()], [0, 1])

    def test_garbage_may_be_collected_on_the_thread_that_pushes(self):
        ended = self.run_script("""
            gc.disable()
            dropped, collected = threading.Event(), threading.Event()
            class Handler(logging.Handler):
                def emit(self, record):
                    dropped.wait()
                    gc.collect()
                    collected.set()
            logging.getLogger("varve").addHandler(Handler())
            logging.getLogger("varve").setLevel(logging.INFO)
            start(remote_close_timeout=1)
            step(0)
            ckpt.wait()
            cycle = [ckpt]
            cycle.append(cycle)
            del cycle, ckpt
            dropped.set()
            collected.wait()
            """)
        self.assertEqual((ended.stderr, ended.returncode), ("", 0))
        self.check_steps([0])


class HandlerTest(StoreTest):
    """A log handler may look at the checkpointer, also while close waits for the last push."""

    def test_it_sees_the_push_and_is_refused_what_waits(self):
        seen, refused = [], []

        class Handler(logging.Handler):
            def emit(self, record):
                seen.append((ckpt.last_save.step, ckpt.last_push.step))
                try:
                    ckpt.wait()
                except varve.FailedPreconditionError as error:
                    refused.append(str(error))

        training, handler, log = Training(1), Handler(), logging.getLogger("varve")
        level = log.level
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        self.addCleanup(log.removeHandler, handler)
        self.addCleanup(log.setLevel, level)
        ckpt = varve.torch.Checkpointer(
            self.path, remote=f"file://{self.folder}/place", remote_interval=100
        )
        ckpt.restore(**training.parts())
        ckpt.after_step(7)
        ckpt.close()
        self.assertEqual(seen, [(7, 7)])
        self.assertRegex(refused[0], "closed|last_push and last_save")


if __name__ == "__main__":
    unittest.main()
