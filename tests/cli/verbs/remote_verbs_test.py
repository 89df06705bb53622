# SPDX-License-Identifier: Apache-2.0
"""push, pull and reclaim of a URL, with a folder as the object store."""

import unittest

import harness
import verb_case


class RemoteVerbsTest(verb_case.VerbCase):
    def setUp(self):
        super().setUp()
        self.save(1)
        self.remote = self.folder / "remote"
        self.url = f"file://{self.remote}"
        self.other = self.folder / "other"

    def at_other(self, *arguments, **options):
        return harness.varve(self.other, *arguments, **options)

    def test_push_and_pull(self):
        pushed = self.json("push", self.url)
        self.assertEqual((pushed["snapshot"], pushed["new"]), (1, True))
        self.assertEqual(pushed["sent_bytes"], pushed["total_bytes"])
        self.assertIn("has it all already: snapshot 1", self.varve("push", self.url).stdout)
        self.save(2)
        self.assertIn("would send", self.varve("push", self.url, "--dry-run").stdout)
        self.assertEqual(self.json("push", self.url)["snapshot"], 2)

        self.assertIn("would fetch", self.at_other("pull", self.url, "--dry-run").stdout)
        self.assertFalse(self.other.exists())
        pulled = harness.varve_json(self.other, "pull", self.url, "--snapshot", 1)
        self.assertEqual((pulled["snapshot"], pulled["steps"]), (1, 1))
        harness.check(self.other)
        self.assertIn("holds 2 steps of snapshot 2", self.at_other("pull", self.url).stdout)
        self.assertEqual(harness.check(self.other)["steps"], 2)
        self.assertEqual(self.at_other("-q", "pull", self.url, "--read-data").stdout, "")

    def test_reclaim(self):
        for step in (2, 3):
            self.varve("push", self.url)
            self.save(step)
            self.varve("drop", step - 1)
        self.varve("push", self.url)
        before = harness.disk_bytes(self.remote)
        dry = harness.varve_json(self.url, "reclaim", "--keep", 1, "--dry-run")
        self.assertEqual((dry["dropped_snapshots"], dry["kept_snapshots"]), ([1, 2], 1))
        self.assertEqual(harness.disk_bytes(self.remote), before)
        done = harness.varve(self.url, "reclaim", "--keep", 1, "--wait", 30).stdout
        short = harness.varve(self.url, "reclaim", "--wait", 29, expect=harness.USAGE)
        self.assertIn("cannot tell a slow push from a dead one: wait 30 s or more", short.stderr)
        self.assertRegex(done, r"^removed 2 snapshots and \d+ blobs, .*; 1 snapshot left\n$")
        self.assertLess(harness.disk_bytes(self.remote), before)
        self.varve("push", self.url)
        self.at_other("pull", self.url)
        harness.check(self.other)

    def test_chosen_steps(self):
        for step in (2, 3):
            self.save(step)
        self.varve("tag", 2, "good")
        self.varve("push", self.url, 1, "good")
        self.assertEqual([step["step"] for step in harness.varve_json(self.url, "steps")], [1, 2])
        self.at_other("pull", self.url, "good")
        steps = harness.varve_json(self.other, "steps")
        self.assertEqual([step["step"] for step in steps], [2])
        self.at_other("pull", self.url, 1)
        self.assertEqual(harness.check(self.other)["steps"], 2)
        done = self.at_other("pull", self.url, 3, expect=harness.NO_STEP)
        self.assertIn("step 3", done.stderr)
        self.fails(harness.NO_STEP, "push", self.url, 7, says="step 7")
        done = self.at_other("pull", self.url, 1, "--dry-run", expect=harness.USAGE)
        self.assertIn("without STEP", done.stderr)

    def test_reading_where_it_lies(self):
        self.save(2)
        self.varve("push", self.url)
        cache = ["--cache", self.folder / "cache", "--cache-bytes", "10MiB"]
        for arguments in (["steps"], ["ls", "latest"], ["get", 1, "w"], ["diff", 1, 2], ["stats"]):
            here = self.json(*arguments)
            there = harness.varve_json(self.url, *cache, *arguments)
            if arguments == ["stats"]:
                here.pop("disk_bytes"), there.pop("disk_bytes")
                here.pop("files", None), there.pop("files", None)
            self.assertEqual(here, there)
        self.assertTrue(harness.varve_json(self.url, "check", "--read-data")["ok"])
        self.assertTrue(list((self.folder / "cache").iterdir()))

    def test_what_is_wrong_is_said(self):
        self.fails(harness.USAGE, "push", "gs://bucket/x", says='no engine has the scheme "gs"')
        self.fails(harness.USAGE, "push", self.remote, says="is no URL")
        self.fails(harness.USAGE, "push", "s3://me:secret@bucket/x", says="~/.aws/credentials")
        self.fails(harness.USAGE, "push")
        self.fails(harness.USAGE, "reclaim", "--keep", 1, says="for URLs")
        url = f"file://{self.remote}"
        for arguments in (["drop", 1], ["tag", 1, "x"], ["push", url], ["backup", self.other]):
            done = harness.varve(url, *arguments, expect=harness.USAGE)
            self.assertIn("pull it first", done.stderr)
        done = harness.varve(url, "reclaim", expect=harness.NO_STORE)
        self.assertIn("there is no snapshot in", done.stderr)
        done = self.at_other("pull", url, expect=harness.NO_STORE)
        self.assertIn("there is no snapshot in", done.stderr)
        self.at_other("push", url, expect=harness.NO_STORE)
        self.varve("push", url)
        (self.folder / "full").mkdir()
        (self.folder / "full" / "file").touch()
        done = harness.varve(self.folder / "full", "pull", url, expect=harness.FAILED)
        self.assertIn("not empty", done.stderr)


if __name__ == "__main__":
    unittest.main()
