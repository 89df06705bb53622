# SPDX-License-Identifier: Apache-2.0
"""`varve view` shows a step as soon as it is there, and goes on while it makes a long answer."""

import json
import unittest

import harness
import safetensors_bytes as files
import view_case
from verb_case import VerbCase


class NewStepsTest(VerbCase):
    def test_a_new_step_is_seen_while_a_long_answer_is_made(self):
        """A diff of all values reads one state of the store until it is done."""
        rng = view_case.random.Random(20)
        for step in (1, 2):
            tensors = {f"t{i}": files.random_tensor(rng, "U8", [16_000_000]) for i in range(8)}
            self.save(step, tensors=tensors)
        seen, step = 0, 2
        with harness.StoreTool(self.store) as writer, view_case.View(self.store) as view:
            path = view.api_path("diff", before=1, after=2, values="all")
            status, _, body = view.request(path)
            if status == 200:
                self.skipTest("this machine compares 256 MB before anybody has to wait")
            self.assertEqual(status, 202)
            path = view.api_path("job", id=json.loads(body)["job"])
            while status == 202:
                step += 1
                writer.must(f"save {step} {step}")
                self.assertEqual(view.ask("show", step="latest")["step"], step)
                self.assertEqual(view.ask("tensors", step=step)["step"], step)
                self.assertEqual(view.ask("steps", order="newest")["rows"][0]["step"], step)
                status, _, body = view.request(path)
                seen += status == 202
            self.give_up(view)
            if not seen:
                self.skipTest("the answer was done before anybody had asked beside it")

    def give_up(self, view):
        """An answer that nobody wants any more ends."""
        status, _, body = view.request(view.api_path("diff", before=2, after=1, values="all"))
        if status == 200:
            return  # it was done at once
        self.assertEqual(status, 202)
        job = json.loads(body)["job"]
        self.assertEqual(view.ask("job", id=job, giveup=1), {"job": job})
        self.assertEqual(view.ask("job", id=job, expect=503)["code"], "aborted")
        view.ask("job", id=job, giveup=1, expect=410)

    def test_a_new_step_is_seen_at_once(self):
        with harness.StoreTool(self.store) as writer:
            writer.must("save 1 1")
            with view_case.View(self.store) as view:
                for step in range(2, 40):
                    writer.must(f"save {step} {step}")
                    steps = view.ask("steps", limit=1000)
                    self.assertEqual([row["step"] for row in steps["rows"]], [*range(1, step + 1)])
                    shown = view.ask("show", step="latest")
                    self.assertEqual(shown["step"], step)
                    total = view.ask("tensors", step="latest", limit=0)["logical_bytes"]
                    self.assertEqual(total, shown["logical_bytes"])
                    if step % 5 == 0:
                        writer.must(f"drop {step}")
                        self.assertEqual(
                            view.ask("show", step=step, expect=404)["code"], "not found"
                        )
                        writer.must(f"save {step} {step + 100}")
                        told = view.ask("show", step=step)
                        total = view.ask("tensors", step=step, limit=0)["logical_bytes"]
                        self.assertEqual(total, told["logical_bytes"])
                told, shown = self.json("stats"), view.ask("stats")
                for of_files in ("disk_bytes", "files"):  # the writer tidies up meanwhile
                    del told[of_files], shown[of_files]
                self.assertEqual(shown, told)


if __name__ == "__main__":
    unittest.main()
