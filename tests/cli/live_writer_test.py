# SPDX-License-Identifier: Apache-2.0
"""A store with a live writer, and the command beside it as a user types it.

The writer is another process that saves a step ten times a second. Every command is a process, too;
its JSON is parsed and compared with the keys and types of the contract (docs/cli.md).
"""

import subprocess
import time
import unittest

import harness
from live_writer import LiveWriter

PATIENCE = 200  # seconds, only so that the test ends
NONE = type(None)

ID = {"run": str, "step": int}
STEP = {
    "run": str,
    "step": int,
    "created": str,
    "parent": (dict, NONE),
    "logical_bytes": int,
    "new_bytes": int,
    "stored_bytes": int,
    "metrics": dict,
    "tags": [str],
}
SAVED = {
    "run": str,
    "step": int,
    "tensors": int,
    "logical_bytes": int,
    "new_bytes": int,
    "stored_bytes": int,
    "seconds": float,
}
DROP = {
    "dropped": [ID],
    "freed_bytes": int,
    "pending_bytes": int,
    "disk_bytes_before": int,
    "disk_bytes_after": int,
    "applied_by": str,
}
CONTRACT = {
    "import": SAVED,
    "export": {"run": str, "step": int, "tensors": int, "logical_bytes": int, "files": [str]},
    "runs": [{"run": str, "steps": int, "forked_from": (dict, NONE)}],
    "steps": [STEP],
    "ls": [{"name": str, "dtype": str, "shape": [int], "shards": int, "logical_bytes": int}],
    "show": STEP | {"trainer_state": (dict, NONE), "topology": (dict, NONE)},
    "get": {"name": str, "dtype": str, "shape": [int], "logical_bytes": int},
    "diff": {
        "added": [str],
        "removed": [str],
        "unchanged": [str],
        "changed": [{"name": str, "changed_chunks": int, "chunks": int, "changed_bytes": int}],
    },
    "log": [{"step": int, "changed_chunks": int, "stored_bytes": int}],
    "tag": ID | {"tag": str, "applied_by": str},
    "untag": {"run": str, "tag": str, "applied_by": str},
    "metric": ID | {"metrics": dict, "applied_by": str},
    "drop": DROP | {"dry_run": bool},
    "forget": DROP | {"dry_run": bool, "decisions": [ID | {"keep": bool, "reasons": [str]}]},
    "copy": {"destination": str, "copied": [SAVED]},
    "backup": {
        "destination": str,
        "steps": int,
        "copied_files": int,
        "copied_bytes": int,
        "total_bytes": int,
        "seconds": float,
    },
    "check": {"ok": bool, "errors": [str], "steps": int, "chunks": int, "bytes_read": int},
    "stats": {
        "format_version": int,
        "runs": int,
        "steps": int,
        "chunks": int,
        "logical_bytes": int,
        "unique_bytes": int,
        "stored_bytes": int,
        "disk_bytes": int,
        "by_codec": dict,
    },
    "version": {"version": str},
}


def mismatch(value, schema, where="it"):
    """Returns how a JSON value differs from the schema, or None."""
    if isinstance(schema, list):
        if not isinstance(value, list):
            return f"{where} is no array: {value}"
        return next(
            filter(
                None, (mismatch(part, schema[0], f"{where}[{i}]") for i, part in enumerate(value))
            ),
            None,
        )
    if isinstance(schema, dict):
        if not isinstance(value, dict) or not schema.keys() <= value.keys():
            return f"{where} lacks keys of {sorted(schema)}: {value}"
        return next(
            filter(
                None, (mismatch(value[key], part, f"{where}.{key}") for key, part in schema.items())
            ),
            None,
        )
    # In Python a bool is an int. In JSON it is not.
    right = isinstance(value, schema) and (schema is bool or not isinstance(value, bool))
    return None if right else f"{where} is no {schema}: {value!r}"


class LiveWriterTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        self.num_commands = 0

    def tearDown(self):
        harness.check(self.store)

    def varve(self, verb, *arguments):
        """Runs one command and returns its JSON, which is as the contract says."""
        self.num_commands += 1
        done = harness.varve(self.store, "--json", verb, *arguments)
        self.assertEqual(done.stderr, "")
        value = harness.json.loads(done.stdout)
        self.assertIsNone(mismatch(value, CONTRACT[verb]), f"varve {verb} {arguments}")
        return value

    def requests(self, verb, *arguments):
        """The same for a verb that the live writer applies."""
        value = self.varve(verb, *arguments)
        self.assertEqual(value["applied_by"], "writer")
        return value

    def fails(self, code, *arguments):
        self.num_commands += 1
        done = harness.varve(self.store, "--json", *arguments, expect=code)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"^varve: [^\n]+\n$")

    def wait_for(self, condition, what):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"not in time: {what}")
            time.sleep(0.05)

    def tags(self, step):
        return harness.varve_json(self.store, "show", step)["tags"]

    def test_thirty_commands_beside_a_writer(self):
        with LiveWriter(self.store) as writer:
            self.wait_for(lambda: writer.step > 8, "nine steps")
            name = self.look_around()
            self.name_steps()
            self.drop_steps()
            self.take_steps_elsewhere(name)
            self.type_what_is_wrong(name)
            self.assertGreater(self.varve("show", "latest")["step"], 8)  # it went on saving
            self.assertIsNone(writer.error)
        self.assertGreaterEqual(self.num_commands, 30)
        self.assertTrue(self.varve("check", "--read-data")["ok"])

    def look_around(self):
        """Reads. Returns a tensor that changes."""
        self.varve("version")
        self.assertEqual([run["run"] for run in self.varve("runs")], ["main"])
        self.assertGreaterEqual(len(self.varve("steps")), 9)
        names = [tensor["name"] for tensor in self.varve("ls", "latest")]
        self.assertEqual(self.varve("show", 3)["trainer_state"]["global_step"], 3)
        changed = self.varve("diff", 0, "latest", "*", "--values")["changed"]
        name = changed[0]["name"]
        self.assertIn(name, names)
        self.assertEqual(self.varve("log", name)[0]["step"], 0)
        self.varve("log", "*0*")
        self.varve("get", "latest", name)
        self.varve("get", 2, name, "--slice", "0:1", "-o", self.folder / "x.npy")
        self.varve("stats", "--plot", self.folder / "x.svg")
        self.assertTrue(self.varve("check")["ok"])
        return name

    def name_steps(self):
        self.requests("tag", 3, "keep")
        self.assertEqual(self.varve("show", "keep")["step"], 3)
        self.requests("tag", "latest", "tmp")
        self.requests("untag", "tmp")
        self.fails(harness.NO_STEP, "show", "tmp")
        self.requests("metric", 4, "loss=0.5", "acc=nan")
        self.requests("metric", 5, "loss=0.25")
        self.assertEqual(self.varve("show", "best:loss")["step"], 5)

    def drop_steps(self):
        dry = self.varve("drop", "1..2", "--dry-run")
        self.assertEqual(
            ([step["step"] for step in dry["dropped"]], dry["dry_run"]), ([1, 2], True)
        )
        report = self.requests("drop", 1, "main@2")
        self.assertEqual([step["step"] for step in report["dropped"]], [1, 2])
        self.fails(harness.NO_STEP, "show", 1)
        rules = ["--keep-tag", "keep", "--keep-best", "loss:1", "--keep-last", 1000]
        self.assertEqual(self.varve("forget", *rules, "--dry-run")["dropped"], [])
        # Drops by number, because the writer saves on between the decision and the drop.
        dry = self.varve("forget", "--keep-tag", "keep", "--keep-best", "loss:1", "--dry-run")
        self.assertIn({"run": "main", "step": 4}, dry["dropped"])
        self.assertGreater(dry["freed_bytes"], 0)
        report = self.requests(
            "forget", "--keep-tag", "keep", "--keep-best", "loss:1", "--keep-last", 3
        )
        self.assertNotIn({"run": "main", "step": 3}, report["dropped"])
        self.assertIn({"run": "main", "step": 4}, report["dropped"])
        steps = [step["step"] for step in self.varve("steps", "--run", "main")]
        self.assertEqual(steps[:2], [3, 5])
        self.assertTrue(self.varve("drop", 3, "--no-wait")["applied_by"] in ("nobody", "caller"))
        self.wait_for(
            lambda: 3 not in [s["step"] for s in harness.varve_json(self.store, "steps")], "drop 3"
        )

    def take_steps_elsewhere(self, name):
        copy, backup = self.folder / "copy", self.folder / "backup"
        self.varve("copy", 5, "latest", copy, "--init")
        self.varve("export", 5, "-q", "-o", self.folder / "out.safetensors")
        first = self.varve("backup", backup)
        second = self.varve("backup", backup, "--read-data")
        self.assertGreaterEqual(second["steps"], first["steps"])
        for other in (copy, backup):
            harness.check(other)
            self.assertEqual(harness.varve_json(other, "diff", 5, 5)["changed"], [])
            self.assertGreater(harness.varve_json(other, "log", name)[0]["changed_chunks"], 0)

    def type_what_is_wrong(self, name):
        file = self.folder / "out.safetensors"
        for arguments in (
            ["import", file, "--step", 10**6],
            ["fork", "main", "x"],
            ["rewind", "main", "--to", 5],
            ["reclaim"],
        ):
            self.fails(harness.LOCKED, *arguments)
        for arguments in (
            ["tag", 1, "x"],
            ["tag", 1, "x", "--no-wait"],
            ["untag", "gone"],
            ["metric", 1, "a=1"],
            ["drop", 1],
            ["diff", 1, 5],
            ["log", "no-such-tensor"],
            ["get", 5, "no-such-tensor"],
            ["forget", "--keep-last", 1, "--run", "gone"],
        ):
            self.fails(harness.NO_STEP, *arguments)
        for arguments in (
            ["tag", 5, "latest"],
            ["metric", 5, "loss"],
            ["forget"],
            ["drop"],
            ["forget", "--keep-tag", "no-such-tag"],
        ):
            self.fails(harness.USAGE, *arguments)
        self.fails(harness.EXISTS, "get", 5, name, "-o", self.folder / "x.npy")
        harness.varve(self.folder / "gone", "tag", 5, "x", expect=harness.NO_STORE)

    def test_nobody_waits_for_a_writer_that_sleeps(self):
        with LiveWriter(self.store) as writer:
            writer.stop()
            for arguments in (
                ["tag", 0, "x"],
                ["metric", 0, "loss=1"],
                ["untag", "x"],
                ["tag", 0, "y"],
            ):
                if arguments[0] == "untag":
                    self.fails(harness.NO_STEP, *arguments, "--no-wait")  # x is still to be set
                    continue
                self.assertEqual(self.varve(*arguments, "--no-wait")["applied_by"], "nobody")
            self.assertEqual(self.tags(0), [])
            writer.go_on()
            self.wait_for(lambda: self.tags(0) == ["x", "y"], "tags x and y")
            self.assertEqual(self.varve("show", 0)["metrics"], {"loss": 1})
            self.assertIsNone(writer.error)

    def test_the_command_takes_the_place_of_a_writer_that_dies(self):
        with LiveWriter(self.store) as writer:
            self.wait_for(lambda: writer.step > 4, "five steps")
            self.requests("tag", 2, "by-the-writer")
            writer.stop()
            self.varve("tag", 3, "not-waited-for", "--no-wait")
            command = [harness.program("varve"), "-s", str(self.store), "--json", "drop", "1"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
                with self.assertRaises(subprocess.TimeoutExpired):
                    waiting.wait(1)  # it does wait
                writer.kill()
                report = harness.json.loads(waiting.communicate(timeout=60)[0])
            self.assertEqual(waiting.returncode, 0)
            self.assertIsNone(mismatch(report, CONTRACT["drop"]))
            self.assertEqual(
                (report["applied_by"], report["dropped"]), ("caller", [{"run": "main", "step": 1}])
            )
        # The waiting requests were applied on the way. Now any command can take the lock.
        self.assertEqual(self.varve("show", "by-the-writer")["step"], 2)
        self.assertEqual(self.varve("show", "not-waited-for")["step"], 3)
        self.assertEqual(self.varve("metric", 0, "loss=2")["applied_by"], "caller")
        self.assertEqual(self.varve("forget", "--keep-tag", "*")["applied_by"], "caller")
        self.assertEqual([step["step"] for step in self.varve("steps")], [2, 3])
        self.assertTrue(self.varve("check", "--read-data")["ok"])


if __name__ == "__main__":
    unittest.main()
