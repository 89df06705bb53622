# SPDX-License-Identifier: Apache-2.0
"""`varve view` with few threads, few descriptors or little memory.

It shows the store until Ctrl-C, or it ends with exit code 1 and one line that names what is lacking. No
signal ends it, unless RocksDB gets no memory where it cannot go on. With few threads or descriptors, every
answer of a view that has started is whole.
"""

import concurrent.futures
import http.client
import json
import os
import signal
import unittest

import harness
import scarcity
import view_case

NUM_ASKING = 8


class ScarceViewTest(view_case.ViewCase):
    def assert_ended_by(self, lacking, exit_code, errors):
        if lacking == "memory" and exit_code in (-signal.SIGABRT, -signal.SIGSEGV):
            self.assertTrue(scarcity.ended_by_library(errors), errors)
            return
        self.assertEqual(exit_code, harness.FAILED, errors)
        self.assertRegex(errors, r"^varve: [^\n]+\n$")
        self.assertTrue(any(word in errors for word in scarcity.WORDS[lacking]), errors)

    def look(self, lacking, **limits):
        """Returns whether a view under limits has started."""
        try:
            view = view_case.View(self.store, **limits)
        except view_case.EndedError as ended:
            self.assert_ended_by(lacking, ended.exit_code, ended.errors)
            return False
        with view, concurrent.futures.ThreadPoolExecutor(NUM_ASKING) as pool:
            for status, body in pool.map(self.ask_runs, [view] * NUM_ASKING):
                self.assertEqual(status, 200, body)
                self.assertEqual(json.loads(body), self.json("runs"))
        return True

    @staticmethod
    def ask_runs(view):
        """Status and body of an answer, which a busy machine may make later."""
        status, _, body = view.request(view.api_path("runs"))
        while status == 202:
            path = view.api_path("job", id=json.loads(body)["job"])
            status, _, body = view.request(path)
        return status, body

    def test_few_threads(self):
        """One thread that answers is enough."""
        preload = harness.program("libvarve_threads.so")
        started = {}
        for number in [*range(16), 48, 96]:
            with self.subTest(threads=number):
                env = os.environ | {"LD_PRELOAD": preload, "VARVE_MOST_THREADS": str(number)}
                started[number] = self.look("threads", env=env)
        self.assertEqual((started[0], started[15], started[96]), (False, True, True))

    def test_few_descriptors(self):
        """What is left must do for the connections of a browser, or the page would wait without end."""
        started = {}
        for number in [*range(5, 65, 4), 200]:
            with self.subTest(descriptors=number):
                started[number] = self.look("descriptors", limit=f"ulimit -n {number};")
        self.assertEqual((started[5], started[200]), (False, True))

    def test_little_memory(self):
        least = scarcity.least_kib()
        env = os.environ | {"LD_PRELOAD": harness.program("libvarve_abort_site.so")}
        started = []
        for mib in [*range(0, 60, 8), 100, 150, 200, 300, 600, 2000]:
            limits = {"limit": f"ulimit -v {least + mib * 1024};", "env": env}
            with self.subTest(mib=mib):
                started.append(self.look_without_memory(**limits))
        self.assertEqual(started[-1], "shown")

    def look_without_memory(self, **limits):
        """Returns "shown" if the view has shown the store."""
        try:
            view = view_case.View(self.store, **limits)
        except view_case.EndedError as ended:
            self.assert_ended_by("memory", ended.exit_code, ended.errors)
            return "not started"
        try:
            status, body = self.ask_runs(view)
        except (http.client.HTTPException, ConnectionError):
            status = None
        exit_code, errors = view.end()
        if status == 200:
            self.assertEqual(json.loads(body), self.json("runs"))
        elif status is not None:
            said = json.loads(body)["error"]
            self.assertTrue(any(word in said for word in scarcity.WORDS["memory"]), said)
        if exit_code == 0:
            self.assertIsNotNone(status, "a connection was lost without a word")
            self.assertEqual(errors, "")
        else:
            self.assert_ended_by("memory", exit_code, errors)
        return "shown" if status == 200 else "failed"


if __name__ == "__main__":
    unittest.main()
