# SPDX-License-Identifier: Apache-2.0
"""`varve view` of a damaged store shows what can be read, and names what cannot."""

import json
import subprocess
import unittest

import harness
import safetensors_bytes as files
import view_case
from verb_case import VerbCase


class DamagedViewTest(VerbCase):
    def damaged_views(self):
        """A view for each table that is damaged, with what `varve steps` then says."""
        for table in sorted((self.store / "db").glob("*.sst")):
            kept = table.read_bytes()
            table.write_bytes(kept[:8] + bytes(byte ^ 0x55 for byte in kept[8:24]) + kept[24:])
            done = subprocess.run(
                [harness.program("varve"), "-s", str(self.store), "--json", "steps"],
                capture_output=True,
                text=True,
            )
            with self.subTest(table=table.name):
                try:
                    view = view_case.View(self.store)
                except view_case.EndedError as ended:  # nothing can be opened
                    self.assertEqual(ended.exit_code, done.returncode)
                else:
                    with view:
                        yield view, done
            table.write_bytes(kept)

    def test_steps_that_can_be_read_are_shown(self):
        rng = view_case.random.Random(17)
        tensors = {}
        for step, run in ((1, "a"), (2, "a"), (3, "b")):
            tensors[f"w{step}"] = files.random_tensor(rng, "F32", [3000])
            self.save(step, "--run", run, "--metric", f"loss={step}", tensors=tensors)
        incomplete = 0
        for view, done in self.damaged_views():
            if not done.stdout:
                self.assertIn(view.request(view.api_path("steps"))[0], (500, 503))
                continue
            told = json.loads(done.stdout)
            shown = view.ask("steps")
            self.assertEqual(shown["rows"], told)
            curves, lineage, space = (view.ask(what) for what in ("curves", "lineage", "space"))
            self.assertEqual(
                [(lane["run"], lane["steps"], lane["last"]["step"]) for lane in lineage],
                [
                    (run, len(of_run), of_run[-1]["step"])
                    for run in dict.fromkeys(step["run"] for step in told)
                    for of_run in [[step for step in told if step["run"] == run]]
                ],
            )
            self.assertEqual(sum(len(curve["points"]) for curve in curves["runs"]), len(told))
            self.assertEqual(space["steps"], len(told))
            for answer in (shown, curves, space):
                self.assertEqual("errors" in answer, done.returncode != 0)
                for error in answer.get("errors", ()):
                    self.assertIn(error, done.stderr)
            health = view.ask("health")
            self.assertTrue("stats" in health or "error" in health, health)
            incomplete += done.returncode != 0
        self.assertGreater(incomplete, 0)

    def test_damage_in_another_step_hides_no_table_of_a_step(self):
        rng = view_case.random.Random(18)
        tensors = {name: files.random_tensor(rng, "F32", [3000]) for name in ("same", "w")}
        for step in (1, 2, 3):
            tensors["w"] = files.random_tensor(rng, "F32", [3000])
            self.save(step, tensors=tensors)
        whole = self.json("ls", 3, "--stored")
        unknown = 0
        for view, _ in self.damaged_views():
            listed = subprocess.run(
                [harness.program("varve"), "-s", str(self.store), "--json", "ls", "3", "--stored"],
                capture_output=True,
                text=True,
            )
            if listed.returncode != 0:
                continue
            answer = view.ask("tensors", step=3)
            changed = [row.pop("last_changed") for row in answer["rows"]]
            for row in answer["rows"]:
                del row["role"], row["digest"]
            self.assertEqual(answer["rows"], whole)
            if changed != [1, 3]:
                unknown += 1
                self.assertIn(changed[0], (1, None))
                self.assertIn(changed[1], (3, None))
                self.assertIn("last change is not known", answer["errors"][0])
        self.assertGreater(unknown, 0)


if __name__ == "__main__":
    unittest.main()
