# SPDX-License-Identifier: Apache-2.0
"""`varve view` is killed while it answers. It has changed nothing, and the next one shows the store."""

import concurrent.futures
import contextlib
import http.client
import os
import signal
import time
import unittest

import harness
import view_case

KILLS = 60 if "VARVE_FULL_SIZE" in os.environ else 5
ASKED = ("runs", "steps", "curves", "space", "health")


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def ask_until_it_dies(view, what):
    with contextlib.suppress(OSError, http.client.HTTPException):
        while True:
            view.ask(what)


class KilledViewTest(view_case.ViewCase):
    def kill_each(self, shown, folder):
        before, runs = content(folder), harness.varve_json(shown, "runs")
        for _ in range(KILLS):
            view = view_case.View(shown)
            with concurrent.futures.ThreadPoolExecutor(len(ASKED)) as pool:
                asked = [pool.submit(ask_until_it_dies, view, what) for what in ASKED]
                time.sleep(self.rng.random() * 0.1)
                view.process.kill()
                for each in asked:
                    each.result()
            self.assertEqual(view.end()[0], -signal.SIGKILL)
            self.assertEqual(content(folder), before)
            with view_case.View(shown) as again:
                self.assertEqual(again.ask("runs"), runs)

    def test_of_a_store(self):
        self.kill_each(self.store, self.store)

    def test_of_an_object_store(self):
        remote = self.folder / "remote"
        harness.varve(self.store, "push", f"file://{remote}")
        self.kill_each(f"file://{remote}", remote)


if __name__ == "__main__":
    unittest.main()
