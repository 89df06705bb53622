# SPDX-License-Identifier: Apache-2.0
"""`varve view` while another process saves ten times a second.

Requests overlap saves. A step that was committed before a request began must be in its answer. Every number
of an answer must be what the command says of the same steps when the writer is gone.
"""

import collections
import contextlib
import inspect
import itertools
import pathlib
import re
import sys
import threading
import time
import unittest

import harness
from live_writer import LiveWriter
from view_case import View

NUM_STEPS = 40
PATIENCE = 200  # seconds, only so that the test ends
MAX_ROWS = 1000
MAX_SAMPLED = 16  # steps that `sharing` looks at

# `committed` is the newest step whose save had returned when the request began. `begun` is the newest
# step whose save had begun when the answer was there.
Answer = collections.namedtuple("Answer", "what parameters committed begun body")


def as_shown(value):
    """Integers that a double cannot hold are text in the answers of the page."""
    if isinstance(value, dict):
        return {key: as_shown(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_shown(each) for each in value]
    return str(value) if isinstance(value, int) and abs(value) > 2**53 else value


class Visitor:
    """Opens the views one after the other until the end of the `with`, as the page does."""

    def __init__(self, shown, writer):
        self.shown, self.writer = shown, writer
        self.answers = []
        self.error = None
        self.num_looks = 0
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.look_until_the_end)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()

    def look_until_the_end(self):
        try:
            while not self.end.is_set():
                self.look()
                self.num_looks += 1
        except (AssertionError, OSError, KeyError) as error:
            self.error = error

    def ask(self, what, **parameters):
        committed = self.writer.step - 1
        body = self.shown.ask(what, **parameters)
        self.answers.append(Answer(what, parameters, committed, self.writer.step, body))
        return body

    def look(self):
        self.ask("lineage")
        self.ask("curves")
        self.ask("steps", order="newest", limit=MAX_ROWS)
        self.ask("runs")
        self.ask("store")
        for what in ("space", "stats", "sharing", "health"):
            self.ask(what)
        self.ask("forget", keep_last=3, limit=MAX_ROWS)
        newest = self.ask("show", step="latest")["step"]
        for step in {newest, newest // 2}:
            self.ask("near", step=step)
            self.ask("tree", step=step)
            self.ask("ranks", step=step)
            rows = self.ask("tensors", step=step, limit=MAX_ROWS)["rows"]
            name = rows[step % len(rows)]["name"]
            self.ask("tensor", step=step, name=name, values=16)
            self.ask("shards", step=step, name=name)
            self.ask("log", name=name, order="down", limit=MAX_ROWS)
            if step > 0:
                self.ask("diff", before=step - 1, after=step, values="all", limit=MAX_ROWS)
        self.ask("check")


class LongReader(Visitor):
    """Asks for what reads many steps or tensors, so that other requests overlap it."""

    def look(self):
        self.ask("sharing")
        self.ask("forget", keep_last=3, limit=MAX_ROWS)
        newest = self.ask("show", step="latest")["step"]
        self.ask("tensors", step=newest, sort="stored", order="down", limit=MAX_ROWS)
        if newest > 0:
            self.ask("diff", before=newest - 1, after=newest, values="all", limit=MAX_ROWS)
        self.ask("check", start=1)


class RequestsTest(unittest.TestCase):
    def test_they_are_those_of_the_page(self):
        root = pathlib.Path(__file__).resolve().parents[3]
        asked = set()
        for path in (root / "cli/view/page").glob("*.js"):
            asked |= set(re.findall(r"\bask\(\"(\w+)\"", path.read_text(encoding="utf-8")))
        self.assertGreater(len(asked), 15)
        checked = {name.removeprefix("require_") for name in dir(LiveViewTest)}
        self.assertEqual(asked - checked, set())
        sys.path.insert(0, str(root / "bench"))
        import view

        questions = view.requests_of_store() + view.requests_of_step("main", 2, "w", "w.")
        self.assertEqual({what for _, what, _ in questions}, asked)
        self.assertEqual(
            set(re.findall(r'self\.ask\("(\w+)"', inspect.getsource(view.Visitor))), asked
        )


class LiveViewTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        self.told = {}

    def tearDown(self):
        harness.check(self.store)

    def json(self, *arguments):
        """What the command says, when nobody writes any more."""
        if arguments not in self.told:
            self.told[arguments] = harness.varve_json(self.store, *arguments)
        return self.told[arguments]

    def test_every_answer_beside_a_writer_is_right(self):
        with LiveWriter(self.store) as writer, View(self.store) as shown:
            visitors = [Visitor(shown, writer), Visitor(shown, writer), LongReader(shown, writer)]
            with contextlib.ExitStack() as stack:
                for each in visitors:
                    stack.enter_context(each)
                deadline = time.monotonic() + PATIENCE
                while (
                    writer.step < NUM_STEPS or min(each.num_looks for each in visitors) < 2
                ) and not any(each.error for each in (*visitors, writer)):
                    self.assertLess(time.monotonic(), deadline, f"{writer.step} steps")
                    time.sleep(0.05)
            for each in (*visitors, writer):
                self.assertIsNone(each.error)
        answers = [answer for each in visitors for answer in each.answers]
        self.assertGreater(sum(answer.begun > answer.committed + 1 for answer in answers), 10)
        self.steps = self.json("steps")
        self.assertEqual([step["step"] for step in self.steps], list(range(len(self.steps))))
        with View(self.store) as self.shown:
            for answer in answers:
                words = f"{answer.what} {answer.parameters} after step {answer.committed}"
                with self.subTest(words):
                    getattr(self, f"require_{answer.what}")(answer)

    def require_newest(self, answer, newest):
        """`newest` is the newest step that the answer knows."""
        self.assertGreaterEqual(newest, answer.committed, "a committed step is missing")
        self.assertLessEqual(newest, answer.begun)

    def require_lineage(self, answer):
        (lane,) = answer.body
        self.require_newest(answer, lane["last"]["step"])
        self.assertEqual(lane["steps"], lane["last"]["step"] + 1)
        self.assertEqual(lane["last"]["created"], self.steps[lane["steps"] - 1]["created"])

    def require_store(self, answer):
        self.assertEqual(answer.body["path"], str(self.store))

    def require_curves(self, answer):
        self.assertEqual(answer.body["metrics"], [])

    def require_runs(self, answer):
        (run,) = answer.body
        self.require_newest(answer, run["steps"] - 1)

    def require_steps(self, answer):
        rows = answer.body["rows"]
        self.require_newest(answer, len(rows) - 1)
        self.assertEqual(answer.body["total"], len(rows))
        self.assertEqual(rows[::-1], self.steps[: len(rows)])

    def sums(self, num_steps):
        keys = ("logical_bytes", "new_bytes", "stored_bytes")
        return {key: sum(step[key] for step in self.steps[:num_steps]) for key in keys}

    def require_space(self, answer):
        space = answer.body
        self.require_newest(answer, space["steps"] - 1)
        for key, expected in self.sums(space["steps"]).items():
            self.assertEqual(sum(each[key] for each in space["bins"]), expected, key)

    def require_stats(self, answer):
        self.require_newest(answer, answer.body["steps"] - 1)
        sums = self.sums(answer.body["steps"])
        for key in ("logical_bytes", "stored_bytes"):
            self.assertEqual(answer.body[key], sums[key], key)

    def require_health(self, answer):
        self.require_stats(answer._replace(body=answer.body["stats"]))

    def require_sharing(self, answer):
        """It is of a sample of the steps that have a step before them."""
        self.assertGreaterEqual(answer.body["checkpoints"], min(answer.committed, MAX_SAMPLED))
        self.assertLessEqual(answer.body["checkpoints"], MAX_SAMPLED)
        for group in answer.body["groups"]:
            self.assertLessEqual(group["new_bytes"], group["bytes"])

    def require_forget(self, answer):
        decisions = answer.body["decisions"]
        self.require_newest(answer, decisions["total"] - 1)
        kept = [row["step"] for row in decisions["rows"] if row["keep"]]
        newest = list(range(decisions["total"]))[-3:]
        self.assertEqual(sorted(kept), newest)
        self.assertEqual(answer.body["num_dropped"], decisions["total"] - len(kept))

    def require_show(self, answer):
        self.require_newest(answer, answer.body["step"])
        self.assertEqual(answer.body, self.json("show", answer.body["step"]))

    def require_near(self, answer):
        step = answer.parameters["step"]
        before, after = (
            answer.body[key] and answer.body[key]["step"] for key in ("before", "after")
        )
        self.assertEqual(before, step - 1 if step > 0 else None)
        if after is None:
            self.require_newest(answer, step)
        else:
            self.assertEqual(after, step + 1)

    def require_same_later(self, answer):
        """A server that starts when the writer is gone gives the same answer."""
        self.assertEqual(answer.body, self.shown.ask(answer.what, **answer.parameters))

    def require_tree(self, answer):
        rows = self.json("ls", answer.parameters["step"], "--stored")
        self.assertEqual(answer.body["bytes"], sum(row["logical_bytes"] for row in rows))
        self.assertEqual(answer.body["tensors"], len(rows))
        self.require_same_later(answer)

    def require_ranks(self, answer):
        self.require_same_later(answer)

    def require_tensors(self, answer):
        self.require_same_later(answer)
        step = answer.parameters["step"]
        own = ("digest", "last_changed", "role")
        rows = sorted(
            ({key: row[key] for key in row if key not in own} for row in answer.body["rows"]),
            key=lambda row: row["name"],
        )
        told = sorted(self.json("ls", step, "--stored"), key=lambda row: row["name"])
        self.assertEqual(rows, told)
        for row in answer.body["rows"]:
            changes = [each["step"] for each in self.json("log", row["name"])]
            self.assertEqual(row["last_changed"], max(c for c in changes if c <= step), row["name"])

    def require_tensor(self, answer):
        name, step = answer.parameters["name"], answer.parameters["step"]
        self.assertEqual(answer.body["get"], as_shown(self.json("get", step, name, "--values", 16)))
        self.require_same_later(answer)

    def require_shards(self, answer):
        told = self.json("show", answer.parameters["step"], answer.parameters["name"])
        self.assertEqual(answer.body["rows"], told)

    def require_log(self, answer):
        rows, told = answer.body["rows"][::-1], self.json("log", answer.parameters["name"])
        self.assertEqual(rows, told[: len(rows)])
        missing = [row["step"] for row in told[len(rows) :]]
        if missing:
            self.assertGreater(missing[0], answer.committed, "a committed step is missing")

    def require_diff(self, answer):
        told = self.json(
            "diff", answer.parameters["before"], answer.parameters["after"], "--values"
        )
        self.assertEqual(answer.body["rows"], told["changed"])
        self.assertEqual(answer.body["num_unchanged"], len(told["unchanged"]))
        self.assertEqual((answer.body["num_added"], answer.body["num_removed"]), (0, 0))

    def require_check(self, answer):
        report = (answer.body or {}).get("report")
        if report is None:
            return  # nobody has asked for a check yet
        self.assertEqual(report["errors"], [])
        if "start" in answer.parameters:
            self.require_newest(answer, report["steps"] - 1)

    def test_a_digest_changes_when_the_bytes_do(self):
        """Digests of different steps are equal where `varve log` names no change between them."""
        with LiveWriter(self.store) as writer, View(self.store) as shown:
            digests = {}
            deadline = time.monotonic() + PATIENCE
            while writer.step < NUM_STEPS // 3 and writer.error is None:
                self.assertLess(time.monotonic(), deadline, f"{writer.step} steps")
                step = writer.step - 1
                for row in shown.ask("tensors", step=step, limit=MAX_ROWS)["rows"]:
                    digests.setdefault(row["name"], {})[step] = row["digest"]
            self.assertIsNone(writer.error)
        for name, of_steps in digests.items():
            changes = [change["step"] for change in self.json("log", name)]
            for (a, one), (b, other) in itertools.pairwise(sorted(of_steps.items())):
                if not any(a < change <= b for change in changes):
                    self.assertEqual(one, other, f"{name} at {a} and {b}")
                elif b == a + 1:
                    self.assertNotEqual(one, other, f"{name} at {a} and {b}")


if __name__ == "__main__":
    unittest.main()
