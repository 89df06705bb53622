# SPDX-License-Identifier: Apache-2.0
"""The verbs about history: what changed, names, branches, retention, other stores. No live writer."""

import os
import pathlib
import random
import struct
import unittest

import harness
import safetensors_bytes as files
import verb_case


def floats(*values):
    return "F32", [len(values)], struct.pack(f"<{len(values)}f", *values)


class DiffAndLogTest(verb_case.VerbCase):
    def setUp(self):
        super().setUp()
        same = files.random_tensor(self.rng, "U8", [3 << 20])  # three chunks
        one_chunk_later = same[2][:-1] + bytes([same[2][-1] ^ 1])
        self.save(1, tensors={"a.same": same, "a.w": same, "gone": floats(1), "v": floats(1, 2, 2)})
        self.save(
            2,
            tensors={
                "a.same": same,
                "a.w": ("U8", same[1], one_chunk_later),
                "new": floats(2),
                "v": floats(1, 2, 2.5),
            },
        )
        self.save(
            3,
            "--tag",
            "last",
            tensors={"a.same": same, "a.w": same, "new": floats(2), "v": floats(1, 2)},
        )
        self.save(9, "--run", "exp", tensors={"a.w": same})

    def test_diff(self):
        diff = self.json("diff", 1, 2)
        self.assertEqual(set(diff), {"added", "removed", "changed", "unchanged"})
        self.assertEqual(
            (diff["added"], diff["removed"], diff["unchanged"]), (["new"], ["gone"], ["a.same"])
        )
        self.assertEqual(
            diff["changed"],
            [
                {
                    "name": "a.w",
                    "shard": 0,
                    "reshaped": False,
                    "changed_chunks": 1,
                    "chunks": 3,
                    "changed_bytes": 1 << 20,
                },
                {
                    "name": "v",
                    "shard": 0,
                    "reshaped": False,
                    "changed_chunks": 1,
                    "chunks": 1,
                    "changed_bytes": 12,
                },
            ],
        )

    def test_diff_of_values(self):
        changed = {entry["name"]: entry for entry in self.json("diff", 1, 2, "--values")["changed"]}
        self.assertEqual(
            changed["v"]["values"],
            {
                "elements": 3,
                "changed_elements": 1,
                "max_abs": 0.5,
                "relative_norm": 0.5 / 3,
                "new_nans": 0,
            },
        )
        self.assertEqual(changed["a.w"]["values"]["changed_elements"], 1)
        (reshaped,) = self.json("diff", 2, 3, "v", "--values")["changed"]
        self.assertEqual((reshaped["reshaped"], reshaped["values"]), (True, None))

    def test_diff_names_steps_and_tensors_in_every_way(self):
        self.assertEqual(self.json("diff", "exp@9", "last", "a.w")["unchanged"], ["a.w"])
        self.assertEqual(self.json("diff", 1, "latest", "a.*")["unchanged"], ["a.same", "a.w"])
        self.assertEqual(
            self.json("diff", 1, 2, "x*"),
            {"added": [], "removed": [], "changed": [], "unchanged": []},
        )
        self.fails(harness.NO_STEP, "diff", 1, 2, "x", says='"x"')
        self.fails(harness.NO_STEP, "diff", 1, 7)
        self.fails(harness.NO_STEP, "diff", 7, 1)
        self.fails(harness.USAGE, "diff", 1)

    def test_diff_as_text(self):
        text = self.varve("diff", 1, 2).stdout
        self.assertRegex(
            text, r"\n- +gone\n\+ +new\n~ +a\.w +1 of 3 +1\.0 MiB\n~ +v +1 of 1 +12 B\n"
        )
        self.assertTrue(
            text.endswith("1 removed (-), 1 added (+), 2 changed (~) in 1.0 MiB, 1 unchanged\n")
        )
        self.assertRegex(
            self.varve("diff", 1, 2, "v", "--values").stdout,
            r"\n~ +v +1 of 1 +12 B +1 of 3 +0\.5 +0\.166667 +0\n",
        )
        self.assertRegex(
            self.varve("diff", 2, 3, "v", "--values").stdout,
            r"\n! +v .* - +- +- +-\n.*another shape",
        )
        self.assertEqual(
            self.varve("diff", 1, 1).stdout,
            "0 removed (-), 0 added (+), 0 changed (~) in 0 B, 4 unchanged\n",
        )

    def test_log(self):
        log = self.json("log", "a.w")
        self.assertEqual(
            [(entry["step"], entry["changed_chunks"], entry["chunks"]) for entry in log],
            [(1, 3, 3), (2, 1, 3), (3, 1, 3)],
        )
        self.assertGreater(log[1]["stored_bytes"], 0)
        self.assertEqual(log[2]["stored_bytes"], 0)  # that chunk is in the store from step 1
        self.assertEqual([entry["step"] for entry in self.json("log", "gone")], [1])
        self.assertEqual([entry["step"] for entry in self.json("log", "a.w", "--run", "exp")], [9])

    def test_log_of_a_pattern(self):
        log = self.json("log", "a.*")
        self.assertEqual(
            [(entry["name"], entry["step"]) for entry in log],
            [("a.same", 1), ("a.w", 1), ("a.w", 2), ("a.w", 3)],
        )
        self.assertEqual(self.json("log", "x*"), [])
        self.assertRegex(self.varve("log", "a.w").stdout, r"\na\.w +2 +1 of 3 +1\.0 MiB +")

    def test_log_of_what_is_not_there(self):
        self.fails(harness.NO_STEP, "log", "x", says="x")
        self.fails(harness.NO_STEP, "log", "a.w", "--run", "no-such")
        self.fails(harness.NO_STEP, "log", "a.*", "--run", "no-such")
        self.fails(harness.USAGE, "log")


class NamesTest(verb_case.VerbCase):
    def setUp(self):
        super().setUp()
        self.save(1, "--metric", "loss=3")
        self.save(2)
        self.save(5, "--run", "exp", "--tag", "mine")

    def test_tag_and_untag(self):
        self.assertEqual(
            self.json("tag", 1, "v1.0"),
            {"run": "main", "step": 1, "tag": "v1.0", "applied_by": "caller"},
        )
        self.assertEqual(self.json("show", "v1.0")["step"], 1)
        self.json("tag", "latest", "v1.0")  # it moves
        self.assertEqual(self.json("show", "v1.0")["step"], 2)
        self.assertEqual(self.json("show", 1)["tags"], [])
        self.json("tag", "exp@mine", "v1.0")  # each run has its own
        self.assertEqual(self.json("show", "v1.0")["step"], 2)
        self.assertEqual(
            self.json("untag", "v1.0"), {"run": "main", "tag": "v1.0", "applied_by": "caller"}
        )
        self.fails(harness.NO_STEP, "show", "v1.0")
        self.assertEqual(self.json("untag", "exp@v1.0")["run"], "exp")
        self.assertEqual(self.json("untag", "mine", "--run", "exp")["run"], "exp")
        self.assertEqual(self.json("show", "exp@5")["tags"], [])

    def test_tag_as_text(self):
        self.assertEqual(self.varve("tag", "exp@5", "x").stdout, "step exp@5 tagged x\n")
        self.assertEqual(self.varve("untag", "exp@x").stdout, "tag x of run exp removed\n")
        self.assertEqual(self.varve("-q", "tag", 1, "x").stdout, "")

    def test_tags_that_are_refused(self):
        for tag in ("12", "latest", "best", "best:loss", "a@b", "a b", "a*", ""):
            self.fails(harness.USAGE, "tag", 1, tag)
        self.fails(harness.USAGE, "untag", "12", says="is no tag")
        self.fails(harness.USAGE, "untag", "latest")
        self.fails(harness.USAGE, "untag", "exp@mine", "--run", "main", says="is not of run")
        self.fails(harness.USAGE, "tag", 1)

    def test_tag_of_what_is_not_there(self):
        self.fails(harness.NO_STEP, "tag", 7, "x", says="7")
        self.fails(harness.NO_STEP, "tag", 7, "x", "--no-wait", says="7")
        self.fails(harness.NO_STEP, "tag", "no-such", "x", says="no-such")
        self.fails(harness.NO_STEP, "untag", "no-such", says="no-such")
        self.fails(harness.NO_STEP, "untag", "mine", says="mine")

    def test_metric(self):
        report = self.json("metric", 1, "acc=0.5", "loss=2", "x=nan")
        self.assertEqual(
            report,
            {
                "run": "main",
                "step": 1,
                "metrics": {"acc": 0.5, "loss": 2, "x": "NaN"},
                "applied_by": "caller",
            },
        )
        self.assertEqual(self.json("show", 1)["metrics"], {"acc": 0.5, "loss": 2, "x": "NaN"})
        self.assertEqual(self.json("metric", "latest", "loss=1")["step"], 2)
        self.assertEqual(self.json("show", "best:loss")["step"], 2)
        self.assertEqual(self.varve("metric", 2, "acc=1").stdout, "step 2 given acc=1\n")

    def test_metrics_that_are_refused(self):
        self.fails(harness.USAGE, "metric", 1)
        self.fails(harness.USAGE, "metric", 1, "loss")
        self.fails(harness.USAGE, "metric", 1, "loss=low")
        self.fails(harness.USAGE, "metric", 1, "a=1", "a=2", says="twice")
        self.fails(harness.NO_STEP, "metric", 7, "a=1", says="7")
        self.assertEqual(self.json("show", 1)["metrics"], {"loss": 3})


class BranchTest(verb_case.VerbCase):
    def setUp(self):
        super().setUp()
        self.save(1, "--metric", "loss=3", "--tag", "start")
        self.save(2)
        self.save(3, "--tag", "end")

    def test_fork(self):
        before = self.json("stats")["stored_bytes"]
        self.assertEqual(
            self.json("fork", "main", "exp", "--at", "start"),
            {"run": "exp", "step": 1, "forked_from": {"run": "main", "step": 1}},
        )
        self.assertEqual(self.json("fork", "main", "exp2")["step"], 3)
        self.assertEqual(self.json("fork", "exp", "exp3", "--at", "exp@best:loss")["step"], 1)
        self.assertEqual(self.json("stats")["stored_bytes"], before)
        self.assertEqual(self.json("diff", "main@1", "exp@1")["unchanged"], ["w"])
        forked = {run["run"]: run["forked_from"] for run in self.json("runs")}
        self.assertEqual(
            forked,
            {
                "main": None,
                "exp": {"run": "main", "step": 1},
                "exp2": {"run": "main", "step": 3},
                "exp3": {"run": "exp", "step": 1},
            },
        )
        self.assertEqual(self.varve("fork", "main", "exp4").stdout, "run exp4 starts from step 3\n")
        self.save(4, "--run", "exp")
        self.assertEqual(self.steps("--run", "exp"), [("exp", 1), ("exp", 4)])

    def test_fork_that_is_refused(self):
        self.fails(harness.EXISTS, "fork", "main", "main")
        self.json("fork", "main", "exp")
        self.fails(harness.EXISTS, "fork", "main", "exp", says="exp")
        self.fails(harness.NO_STEP, "fork", "no-such", "x")
        self.fails(harness.NO_STEP, "fork", "main", "x", "--at", 7)
        self.fails(harness.NO_STEP, "fork", "main", "x", "--at", "no-such")
        self.fails(harness.USAGE, "fork", "main", "a b")
        self.fails(harness.USAGE, "fork", "main", "x", "--at", "exp@1", says="is not of run")
        self.fails(harness.USAGE, "fork", "main")
        self.assertEqual([run["run"] for run in self.json("runs")], ["exp", "main"])

    def test_rewind(self):
        self.assertEqual(
            self.json("rewind", "main", "--to", "start"),
            {"run": "main", "step": 1, "fork": "main~1", "moved": [2, 3]},
        )
        self.assertEqual(self.steps(), [("main", 1), ("main~1", 2), ("main~1", 3)])
        self.assertEqual(self.json("show", "main~1@end")["step"], 3)
        self.save(2)
        self.assertEqual(self.json("rewind", "main", "--to", 1)["fork"], "main~2")
        self.assertEqual(
            self.varve("rewind", "main~1", "--to", 2).stdout,
            "step 2 is the newest of run main~1; 1 later step moved to run main~1~1\n",
        )

    def test_rewind_to_the_newest_changes_nothing(self):
        self.assertEqual(
            self.json("rewind", "main", "--to", "latest"),
            {"run": "main", "step": 3, "fork": None, "moved": []},
        )
        self.assertEqual(
            self.varve("rewind", "main", "--to", 3).stdout,
            "step 3 is the newest of run main already\n",
        )

    def test_rewind_that_is_refused(self):
        self.fails(harness.NO_STEP, "rewind", "main", "--to", 7, says="7")
        self.fails(harness.NO_STEP, "rewind", "no-such", "--to", 1)
        self.fails(harness.USAGE, "rewind", "main")
        self.fails(harness.USAGE, "rewind", "main", "--to", "exp@1")
        self.assertEqual(self.steps(), [("main", 1), ("main", 2), ("main", 3)])

    def test_import_forks_what_is_there(self):
        self.save(2, "--on-existing", "fork", seed=7)
        self.assertEqual(self.steps(), [("main", 1), ("main", 2), ("main~1", 2), ("main~1", 3)])
        self.assertEqual(self.json("diff", "main@2", "main~1@2")["changed"][0]["name"], "w")
        self.assertEqual(self.json("show", "main~1@end")["step"], 3)


class ForgetTest(verb_case.VerbCase):
    def setUp(self):
        super().setUp()
        for step in range(1, 8):
            self.save(
                step,
                "--metric",
                f"loss={(step - 3) ** 2}",
                *(["--tag", "mine"] if step == 2 else []),
            )

    def kept(self, *rules):
        report = self.json("forget", "--dry-run", *rules)
        return [decision["step"] for decision in report["decisions"] if decision["keep"]]

    def test_each_rule(self):
        self.assertEqual(self.kept("--keep-last", 2), [6, 7])
        self.assertEqual(self.kept("--keep-every", 3), [3, 6])
        self.assertEqual(self.kept("--keep-best", "loss:2"), [3, 4])
        self.assertEqual(self.kept("--keep-best", "loss:max:1"), [7])
        self.assertEqual(
            self.kept("--keep-best", "loss:min:1", "--keep-best", "loss:max:1"), [3, 7]
        )
        self.assertEqual(self.kept("--keep-within", "1h"), [1, 2, 3, 4, 5, 6, 7])
        self.assertEqual(self.kept("--keep-tag", "mine", "--keep-last", "1"), [2, 7])
        self.assertEqual(self.kept("--keep-tag", "*"), [2])

    def test_dry_run_says_why_and_how_much(self):
        report = self.json("forget", "--keep-last", 1, "--keep-tag", "mine", "--dry-run")
        self.assertTrue(report["dry_run"])
        self.assertEqual([step["step"] for step in report["dropped"]], [1, 3, 4, 5, 6])
        self.assertEqual(report["decisions"][1]["reasons"], ["tag mine"])
        self.assertEqual(report["decisions"][6]["reasons"], ["last 1"])
        self.assertEqual(report["decisions"][0]["reasons"], [])
        self.assertEqual(report["disk_bytes_before"], report["disk_bytes_after"])
        self.assertEqual(len(self.steps()), 7)
        done = self.json("forget", "--keep-last", 1, "--keep-tag", "mine", "--no-reclaim")
        self.assertEqual(done["dropped"], report["dropped"])
        would_be = report["freed_bytes"] + report["pending_bytes"]
        self.assertEqual(done["pending_bytes"], would_be)
        self.assertEqual(self.json("reclaim", "--all")["freed_bytes"], would_be)

    def test_dry_run_tells_what_comes_back_at_once(self):
        self.json("reclaim", "--all")
        rules = ["--keep-last", 3]
        report = self.json("forget", *rules, "--dry-run")
        waits = self.json("forget", *rules, "--dry-run", "--no-reclaim")
        self.assertEqual(waits["freed_bytes"], 0)
        self.assertEqual(waits["pending_bytes"], report["freed_bytes"] + report["pending_bytes"])
        done = self.json("forget", *rules)
        self.assertEqual(
            (done["freed_bytes"], done["pending_bytes"]),
            (report["freed_bytes"], report["pending_bytes"]),
        )

    def test_dry_run_as_text(self):
        text = self.varve("forget", "--keep-last", 1, "--dry-run").stdout
        self.assertIn(len(text.splitlines()), (10, 11))
        self.assertRegex(text, r"\n +1 +[-0-9]+ [0-9:]+ [-+][0-9]{4} +drop\n")
        self.assertRegex(text, r"\n +7 +[-0-9]+ [0-9:]+ [-+][0-9]{4} +keep +last 1\n")
        self.assertRegex(
            text, r"\nwould drop 6 of 7 steps\n[0-9.]+ \w+ \(\d+ bytes\) would come back at once\n"
        )
        text = self.varve("forget", "--keep-last", 1, "--dry-run", "--no-reclaim").stdout
        self.assertRegex(text, r"\n[0-9.]+ \w+ \(\d+ bytes\) would wait for \"varve reclaim\"")

    def test_forget(self):
        report = self.json("forget", "--keep-last", 2)
        self.assertEqual(
            (len(report["dropped"]), report["applied_by"], report["dry_run"]), (5, "caller", False)
        )
        self.assertGreater(report["freed_bytes"], 0)
        self.assertLess(report["disk_bytes_after"], report["disk_bytes_before"])
        self.assertEqual(self.steps(), [("main", 6), ("main", 7)])
        self.assertRegex(
            self.varve("forget", "--keep-last", 1).stdout,
            r"^keeps 1 of 2 steps; 1 step dropped; .* freed, .* pending, disk .*\n$",
        )

    def test_forget_with_nothing_to_drop(self):
        report = self.json("forget", "--keep-last", 99)
        self.assertEqual(
            (report["dropped"], report["freed_bytes"], report["applied_by"]), ([], 0, "nobody")
        )
        self.assertEqual(report["disk_bytes_before"], self.json("stats")["disk_bytes"])
        self.assertEqual(
            self.varve("forget", "--keep-last", 99).stdout, "keeps 7 of 7 steps; nothing to drop\n"
        )

    def test_forget_leaves_other_runs_alone(self):
        self.save(1, "--run", "exp")
        self.save(2, "--run", "exp")
        self.json("forget", "--keep-last", 1, "--run", "exp")
        self.assertEqual(self.steps("--run", "exp"), [("exp", 2)])
        self.assertEqual(len(self.steps("--run", "main")), 7)

    def test_policies_that_are_refused(self):
        self.fails(harness.USAGE, "forget", says="--keep-last")
        self.fails(harness.USAGE, "forget", "--dry-run", says="--keep-last")
        self.fails(harness.USAGE, "forget", "--keep-every", 100, says="none of the 7 steps")
        self.fails(harness.USAGE, "forget", "--keep-tag", "no-such")
        self.fails(harness.USAGE, "forget", "--keep-best", "no-such:3")
        for rule in (
            ["--keep-last", "0"],
            ["--keep-last", "-1"],
            ["--keep-every", "x"],
            ["--keep-best", "loss"],
            ["--keep-best", "loss:0"],
            ["--keep-within", "7"],
            ["--keep-within", "0s"],
        ):
            self.fails(harness.USAGE, "forget", *rule)
        self.fails(harness.NO_STEP, "forget", "--keep-last", "1", "--run", "no-such")
        self.assertEqual(len(self.steps()), 7)


class OtherStoresTest(verb_case.VerbCase):
    def setUp(self):
        super().setUp()
        self.other = self.folder / "other"
        self.save(1, "--metric", "loss=1", "--tag", "first")
        self.save(2, seed=1)
        self.save(3)

    def tearDown(self):
        super().tearDown()
        if self.other.exists():
            harness.check(self.other)

    def other_steps(self):
        return [(step["run"], step["step"]) for step in harness.varve_json(self.other, "steps")]

    def test_copy(self):
        report = self.json("copy", "first", 2, self.other, "--init")
        self.assertEqual(report["destination"], str(self.other))
        first, second = report["copied"]
        self.assertEqual((first["run"], first["step"], first["new_bytes"]), ("main", 1, 1_200_000))
        self.assertEqual((second["step"], second["new_bytes"]), (2, 0))  # shared there, too
        self.assertEqual(self.other_steps(), [("main", 1), ("main", 2)])
        for step in (1, 2):
            here, there = self.folder / "here.bin", self.folder / "there.bin"
            self.varve("get", step, "w", "-o", here, "--force")
            harness.varve(self.other, "get", step, "w", "-o", there, "--force")
            self.assertEqual(here.read_bytes(), there.read_bytes())
        self.assertEqual(harness.varve_json(self.other, "show", 1)["metrics"], {"loss": 1})
        self.assertRegex(
            self.varve("copy", 3, self.other).stdout, r"^step 3: 1 tensor, 1\.1 MiB, of which .*\n$"
        )

    def test_diff_of_two_stores(self):
        w = files.random_tensor(self.rng, "U8", [3 << 20])
        one_byte_later = ("U8", w[1], w[2][:-1] + bytes([w[2][-1] ^ 1]))
        a = {
            "w": w,
            "v": floats(1, 2, 2),
            "gone": floats(1),
            "same": floats(7, 8),
            "s": floats(1, 2),
        }
        b = {"w": one_byte_later, "v": floats(1, 2, 2.5), "new": floats(2), "same": a["same"]}
        b["s"] = floats(1, 2, 3)
        self.save(10, tensors=a)
        self.save(11, tensors=b)
        source = files.write(self.folder / "in", b)
        harness.varve(self.other, "import", source, "--init", "--step", 5, "--tag", "theirs")
        for options in ([], ["--values"], ["w"], ["--values", "s*"], ["gone"], ["x*"]):
            here = self.json("diff", 10, 11, *options)
            for step in (5, "theirs", "latest"):
                there = self.json("diff", 10, step, "--other", self.other, *options)
                self.assertEqual(there, here, options)
            self.assertEqual(
                self.varve("diff", 10, 5, "--other", self.other, *options).stdout,
                self.varve("diff", 10, 11, *options).stdout,
            )
        self.assertEqual(self.json("diff", 11, 5, "--other", self.other)["changed"], [])
        # The other way round: what was added is removed.
        back = harness.varve_json(self.other, "diff", 5, 10, "--other", self.store)
        self.assertEqual((back["added"], back["removed"]), (["gone"], ["new"]))
        self.fails(harness.NO_STEP, "diff", 10, 9, "--other", self.other, says=str(self.other))
        self.fails(harness.NO_STEP, "diff", 9, 5, "--other", self.other, says="step 9")
        self.fails(harness.NO_STEP, "diff", 10, 5, "x", "--other", self.other, says='"x"')
        gone = self.folder / "no-such"
        self.fails(harness.NO_STORE, "diff", 10, 5, "--other", gone, says=str(gone))
        self.fails(harness.USAGE, "diff", 10, "--other", self.other)

    def test_diff_of_two_stores_finds_damage(self):
        tensor = files.random_tensor(self.rng, "U8", [3 << 20])
        self.save(10, tensors={"big": tensor})
        source = files.write(self.folder / "in", {"big": tensor})
        harness.varve(self.other, "import", source, "--init", "--step", 5)
        self.assertEqual(self.json("diff", 10, 5, "--other", self.other)["unchanged"], ["big"])
        largest = max(self.other.rglob("*.sst"), key=lambda file: file.stat().st_size)
        kept = largest.read_bytes()
        damaged = bytearray(kept)
        damaged[len(kept) // 2] ^= 0xFF
        largest.write_bytes(damaged)
        self.fails(
            harness.DAMAGED, "diff", 10, 5, "--other", self.other, says="big: the later checkpoint"
        )
        largest.write_bytes(kept)

    def test_diff_with_a_backup(self):
        self.varve("backup", self.other)
        self.save(4)
        self.assertEqual(self.json("diff", 3, 3, "--other", self.other)["unchanged"], ["w"])
        changed = self.json("diff", 4, 3, "--other", self.other)["changed"]
        self.assertEqual([tensor["name"] for tensor in changed], ["w"])

    def test_copy_takes_ranges(self):
        self.json("copy", "2..", self.other, "--init")
        self.assertEqual(self.other_steps(), [("main", 2), ("main", 3)])
        self.fails(harness.NO_STEP, "copy", "7..9", self.other, says="7..9")

    def test_copy_into_another_run(self):
        self.json("copy", 1, 3, self.other, "--init", "--run", "kept")
        self.assertEqual(self.other_steps(), [("kept", 1), ("kept", 3)])

    def test_two_trainings_are_compared_as_the_manual_says(self):
        """docs/hooks.md, line by line."""
        same, other = (
            files.random_tensor(self.rng, "F32", [100]),
            files.random_tensor(self.rng, "F32", [100]),
        )
        for name, tensors in (
            ("before", {"w": same, "exp_avg.w": same}),
            ("after", {"w": same, "exp_avg.w": other}),
        ):
            source = files.write(pathlib.Path(self.folder, name + "-in"), tensors)
            harness.varve(self.folder / name, "import", source, "--init", "--step", 100)
        root = pathlib.Path(__file__).resolve().parent.parent.parent.parent
        manual = (
            (root / "docs/hooks.md")
            .read_text(encoding="utf-8")
            .split("**Compare two trainings.**")[1]
        )
        script = manual.split("```sh\n")[1].split("```")[0]
        bin_dir = str(pathlib.Path(harness.program("varve")).parent)
        shown = harness.command(
            "sh",
            "-ec",
            script,
            cwd=self.folder,
            env={**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}"},
        )
        self.assertEqual(shown.count("~  exp_avg.w"), 4)
        self.assertEqual(shown.count("1 changed"), 4)
        self.assertIn("0 removed (-), 0 added (+), 1 changed (~) in 400 B, 1 unchanged", shown)
        harness.check(self.folder / "both")

    def test_copy_of_what_is_there_already(self):
        self.json("copy", 1, 3, self.other, "--init")
        self.fails(harness.EXISTS, "copy", 3, self.other, says="3")
        self.json("copy", 3, self.other, "--on-existing", "replace")
        self.json("copy", 3, self.other, "--on-existing", "fork")
        self.assertEqual(self.other_steps(), [("main", 1), ("main", 3), ("main~1", 3)])

    def test_copy_that_is_refused(self):
        self.fails(harness.NO_STORE, "copy", 1, self.other, says=str(self.other))
        self.fails(harness.USAGE, "copy", 1, says="DEST")
        self.fails(harness.USAGE, "copy")
        self.fails(harness.NO_STEP, "copy", "no-such", self.other, "--init")
        self.assertFalse(self.other.exists())
        self.fails(harness.NO_STEP, "copy", 7, self.other, "--init", says="7")
        self.fails(harness.USAGE, "copy", 1, self.other, "--run", "a b")
        self.fails(harness.USAGE, "copy", 1, self.other, "--on-existing", "keep")

    def test_backup(self):
        report = self.json("backup", self.other)
        self.assertEqual(
            set(report),
            {"destination", "steps", "copied_files", "copied_bytes", "total_bytes", "seconds"},
        )
        self.assertEqual((report["steps"], report["destination"]), (3, str(self.other)))
        self.assertEqual(report["copied_bytes"], report["total_bytes"])
        self.assertEqual(self.other_steps(), self.steps())
        self.save(4)
        second = self.json("backup", self.other, "--read-data")
        self.assertEqual(second["steps"], 4)
        self.assertLess(second["copied_bytes"], second["total_bytes"])
        self.assertEqual(self.other_steps(), self.steps())
        self.assertRegex(
            self.varve("backup", self.other).stdout,
            r" holds 4 steps in .*; copied \d+ files?, .*\n$",
        )

    def test_a_backup_is_a_store_to_go_on_from(self):
        self.json("backup", self.other)
        harness.varve(self.other, "import", self.folder / "in", "--step", 9)
        self.assertEqual(self.other_steps()[-1], ("main", 9))
        self.fails(harness.FAILED, "backup", self.other)  # step 9 would be lost
        self.assertEqual(self.other_steps()[-1], ("main", 9))

    def test_backup_that_is_refused(self):
        self.fails(harness.USAGE, "backup")
        self.assertIn(
            "no-such",
            harness.varve(
                self.folder / "no-such", "backup", self.other, expect=harness.NO_STORE
            ).stderr,
        )
        foreign = self.folder / "foreign"
        foreign.mkdir()
        (foreign / "thesis.tex").write_text("")
        self.fails(harness.FAILED, "backup", foreign, says=str(foreign))
        self.assertEqual(os.listdir(foreign), ["thesis.tex"])


class NoStoreTest(unittest.TestCase):
    def test_every_verb_says_so(self):
        with harness.clean_folder() as folder:
            gone = folder / "gone"
            for arguments in (
                ["diff", 1, 2],
                ["log", "w"],
                ["tag", 1, "x"],
                ["untag", "x"],
                ["metric", 1, "a=1"],
                ["fork", "main", "x"],
                ["rewind", "main", "--to", 1],
                ["drop", 1],
                ["forget", "--keep-last", 1],
                ["copy", 1, folder / "other", "--init"],
                ["backup", folder / "other"],
                ["stats", "--plot", folder / "x.svg"],
            ):
                done = harness.varve(gone, *arguments, expect=harness.NO_STORE)
                self.assertRegex(done.stderr, rf"^varve: [^\n]*{gone}[^\n]*\n$")
            self.assertEqual(os.listdir(folder), [])


class ImportOfSeveralFilesTest(verb_case.VerbCase):
    def test_files_and_an_index_together(self):
        rng = random.Random(5)
        tensors = {name: files.random_tensor(rng, "F16", [1000]) for name in "abcd"}
        model = self.folder / "model"
        model.mkdir()
        self.varve(
            "import",
            files.write(self.folder / "in", {n: tensors[n] for n in "abc"}),
            "--init",
            "--step",
            1,
        )
        self.varve("export", 1, "-o", model, "--max-shard-size", "2000B")
        index = model / "model.safetensors.index.json"
        extra = files.write(model / "extra.safetensors", {"d": tensors["d"]})
        self.varve("import", extra, index, "--step", 2)
        self.varve("import", *sorted(model.iterdir()), "--step", 3)  # as a shell expands model/*
        for step in (2, 3):
            self.varve("export", step, "-o", self.folder / "out.safetensors", "--force")
            self.assertEqual(files.read(self.folder / "out.safetensors"), tensors)


if __name__ == "__main__":
    unittest.main()
