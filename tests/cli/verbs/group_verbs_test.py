# SPDX-License-Identifier: Apache-2.0
"""The command on the root of a group: as on a single store."""

import unittest

import harness
import verb_case

OWN = "r1/layer 0/gewöhnlich"
ALL = "layer 2/gewöhnlich"  # half of it on each rank


class GroupVerbsTest(verb_case.VerbCase):
    def setUp(self):
        super().setUp()
        harness.run("group_worker", "save", self.store, 2, 6)

    def test_lists_and_shows(self):
        self.assertEqual(self.steps(), [("main", step) for step in range(1, 7)])
        self.assertEqual(self.json("runs")[0]["steps"], 6)
        names = [tensor["name"] for tensor in self.json("ls", "latest")]
        self.assertIn(OWN, names)
        self.assertIn(ALL, names)
        shown = self.json("show", "latest")
        self.assertEqual(shown["trainer_state"]["global_step"], 6)
        self.assertEqual(shown["unfinished"], [{"run": "main", "step": 7, "missing_ranks": [0, 1]}])
        self.assertRegex(self.varve("show", 6).stdout, r"unfinished +7: waits for rank 0, 1\n")
        self.assertEqual(len(self.json("show", 6, ALL)), 2)

    def test_gets_bytes_of_every_rank(self):
        out = self.folder / "x.bin"

        def get(*arguments):
            self.varve("get", 6, *arguments, "-o", out, "--force")
            return out.read_bytes()

        self.assertNotEqual(get(OWN), get(OWN.replace("r1", "r0")))
        halves = get(ALL, "--shard", 0), get(ALL, "--shard", 1)
        self.assertEqual(get(ALL), halves[0] + halves[1])
        self.fails(harness.NO_STEP, "get", 6, "nowhere", "-o", out, "--force", says="nowhere")

    def test_changes(self):
        self.varve("tag", 2, "good")
        self.assertEqual(self.json("show", "good")["step"], 2)
        self.varve("metric", 2, "loss=0.5")
        self.assertEqual(self.json("show", "best:loss")["step"], 2)
        self.varve("untag", "good")
        dropped = self.json("drop", 1, 3)
        self.assertEqual(dropped["applied_by"], "caller")
        self.assertEqual([step for _, step in self.steps()], [2, 4, 5, 6])
        self.varve("forget", "--keep-last", 2)
        self.assertEqual([step for _, step in self.steps()], [5, 6])
        self.fails(harness.NO_STEP, "drop", 1, says="step 1")
        self.varve("reclaim")
        self.assertGreater(self.json("stats")["chunks"], 0)

    def test_history(self):
        diff = self.json("diff", 5, 6)
        changed = {tensor["name"] for tensor in diff["changed"]}
        self.assertEqual(len(changed) + len(diff["unchanged"]), len(self.json("ls", 6)))
        self.assertGreater(len(changed), 0)
        self.assertGreater(len(diff["unchanged"]), 0)
        for name in (ALL, OWN, *changed):
            logged = [change["step"] for change in self.json("log", name)]
            self.assertEqual(6 in logged, name in changed, name)
        plain = self.folder / "plain"
        self.varve("copy", 6, plain, "--init")
        self.varve("get", 6, OWN, "-o", self.folder / "here.bin")
        harness.varve(plain, "get", 6, OWN, "-o", self.folder / "there.bin")
        self.assertEqual(
            (self.folder / "here.bin").read_bytes(), (self.folder / "there.bin").read_bytes()
        )
        harness.check(plain)

    def test_damaged_steps_can_be_dropped(self):
        catalogues = sorted((self.store / "catalogues").iterdir(), key=lambda path: int(path.name))
        data = bytearray(catalogues[0].read_bytes())
        data[len(data) // 2] ^= 1
        catalogues[0].write_bytes(data)
        catalogues[1].unlink()
        harness.varve(self.store, "check", expect=harness.DAMAGED)
        self.varve("drop", 1, 2)
        self.assertEqual(self.steps(), [("main", step) for step in range(3, 7)])
        harness.check(self.store)

    def test_a_member_is_not_written_to(self):
        member = next((self.store / "members").iterdir())
        failed = harness.varve(member, "drop", 1, expect=harness.FAILED)
        self.assertIn(f"is a member of the group in {self.store}", failed.stderr)
        harness.check(self.store)

    def test_a_root_that_has_lost_its_file(self):
        (self.store / "GROUP").rename(self.folder / "GROUP")
        self.fails(harness.NO_STORE, "steps", says="has no GROUP file, but log/ of a group")
        (self.folder / "GROUP").rename(self.store / "GROUP")
        harness.check(self.store)

    def test_says_what_it_cannot(self):
        self.fails(harness.EXISTS, "init", says="root of a group")
        copy = self.folder / "copy"
        self.fails(
            harness.FAILED,
            "backup",
            copy,
            says=f"{self.store} is the root of a group: backup copies the store of one "
            "writer; use copy",
        )
        self.assertFalse(copy.exists())


if __name__ == "__main__":
    unittest.main()
