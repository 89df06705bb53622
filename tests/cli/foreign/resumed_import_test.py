# SPDX-License-Identifier: Apache-2.0
"""Row 34: a trainer resumes what was imported, and its steps are exported."""

import json
import struct
import unittest

import foreign_bytes as foreign
import harness
import safetensors_bytes as files
from foreign_case import ForeignCase


class ResumedImportTest(ForeignCase):
    """What an import keeps for its export counts for the step it was imported as, and no other."""

    def resume(self, step, *flags):
        """How many tensors the trainer has that resumes the newest step and saves this one."""
        return int(harness.run("resume_import", self.store, step, *flags))

    def test_optimizer_can_be_left_out(self):
        w = foreign.ckpt_tensor(self.rng, "F32", [70])
        self.write("ckpt/model.ckpt", foreign.ckpt([("w", w)]))
        self.write("ckpt/optimizer.ckpt", foreign.ckpt([("adam.m.0", w), ("adam.v.0", w)]))
        self.varve("import", self.folder / "ckpt", "--format", "infinitrain", "--step", 1)
        self.assertEqual(self.resume(2), 3)
        self.assertEqual(self.resume(3, "--no-load-optim"), 1)

        self.import_llmc()
        self.assertEqual(self.resume(9, "--no-load-optim"), self.json("show", 9)["tensors"])
        self.assertEqual(self.json("show", 8)["tensors"], self.json("show", 9)["tensors"] + 3)

        names = [
            "model.exp_avg_pool.w",
            "a.master.w",
            "exp_avg.w",
            "exp_avg_sq.w",
            "master.w",
            "optimizer.state.0.x",
            "chained_0/optimizer.state.exp_avg/w",
            "adam.m.1",
        ]
        self.save(20, "--run", "main", tensors={name: ("F32", [70], w[2]) for name in names})
        self.assertEqual(self.resume(21, "--no-load-optim"), 2)

    def test_consumed_samples_of_metadata(self):
        for step, text, samples in ((1, "4096", 4096), (2, "many", 0), (3, "-1", 0)):
            source = files.write(
                self.folder / "x", {"w": ("F32", [1], bytes(4))}, {"consumed_samples": text}
            )
            self.varve("import", source, "--step", step)
            self.assertEqual(self.json("show", step)["trainer_state"]["consumed_samples"], samples)

    def metadata_of(self, step):
        out = self.folder / f"out-{step}.safetensors"
        self.notes = self.varve("export", step, "-o", out, "--force").stderr
        header = out.read_bytes()
        length = int.from_bytes(header[:8], "little")
        return json.loads(header[8 : 8 + length]).get("__metadata__", {})

    def test_metadata_count_for_their_own_step(self):
        given = {
            "format": "pt",
            "consumed_samples": "4096",
            "consumed_train_samples": "4096",
            "step": "100",
            "global_step": "last",
            "loss": "2.5",
        }
        source = files.write(self.folder / "x", {"w": ("F32", [1], bytes(4))}, given)
        self.varve("import", source, "--step", 100)
        self.assertEqual(self.metadata_of(100), given)
        self.assertEqual(self.notes, "")
        self.resume(104, "--samples=4112")
        now = {"consumed_samples": "4112", "consumed_train_samples": "4112", "step": "104"}
        self.assertEqual(self.metadata_of(104), given | now)
        self.assertIn(
            'of the import as step 100, unless the trainer has changed them: "glob', self.notes
        )
        self.assertIn('"global_step", "loss"', self.notes)
        self.assertNotIn('"format"', self.notes)

        # Only the step has changed.
        self.varve("import", source, "--step", 200)
        self.resume(204)
        self.assertEqual(self.metadata_of(204), given | {"step": "204"})
        self.assertIn("step 200", self.notes)
        # What an import brings counts as the step that the user named.
        self.assertEqual(self.metadata_of(200), given)
        self.assertEqual(self.notes, "")
        # The exported metadata say the same again.
        self.varve("import", self.folder / "out-104.safetensors", "--step", 300)
        self.assertEqual(self.json("show", 300)["trainer_state"]["consumed_samples"], 4112)
        self.assertEqual(self.metadata_of(300), given | now)

    def import_infinitrain(self, text, *arguments):
        self.model = foreign.ckpt([("w", foreign.ckpt_tensor(self.rng, "F32", [70]))])
        self.write("in/model.ckpt", self.model)
        self.write("in/trainer_state.json", text.encode())
        return self.json("import", self.folder / "in", "--format", "infinitrain", *arguments)[
            "step"
        ]

    def exported_infinitrain(self, step):
        out = self.folder / f"out-{step}"
        self.notes = self.varve("export", step, "--format", "infinitrain", "-o", out).stderr
        return (out / "model.ckpt").read_bytes(), (out / "trainer_state.json").read_text()

    def test_infinitrain(self):
        text = foreign.trainer_state(8)
        self.assertEqual(self.import_infinitrain(text), 8)
        self.resume(20)
        model, exported = self.exported_infinitrain(20)
        self.assertNotEqual(model, self.model)
        expected = json.loads(foreign.trainer_state(8, ","))
        self.assertEqual(json.loads(exported), expected | {"global_step": 20})
        self.assertIn('consumed_batches" is still that of step 8', self.notes)
        self.assertIn('last_lr" is still that of step 8', self.notes)
        self.assertEqual(
            self.exported_infinitrain(8), (self.model, text)
        )  # its own step is as it was
        self.assertEqual(self.notes, "")

    def test_infinitrain_under_another_number(self):
        self.assertEqual(self.import_infinitrain(foreign.trainer_state(8), "--step", 100), 100)
        self.assertEqual(self.json("show", 100)["trainer_state"]["global_step"], 100)
        self.assertEqual(json.loads(self.exported_infinitrain(100)[1])["global_step"], 100)
        self.resume(120)
        self.assertEqual(json.loads(self.exported_infinitrain(120)[1])["global_step"], 120)

    def test_infinitrain_state_that_says_no_step(self):
        text = '{"consumed_batches": 3}'
        self.import_infinitrain(text, "--step", 5)
        self.assertEqual(self.exported_infinitrain(5), (self.model, text))

    def test_infinitrain_copied_and_forked(self):
        text = foreign.trainer_state(8)
        self.import_infinitrain(text)
        self.varve("fork", "main", "other")
        self.assertEqual(self.exported_infinitrain("other@8"), (self.model, text))
        copy = self.folder / "copied"
        self.varve("copy", 8, copy, "--init")
        harness.varve(copy, "export", 8, "--format", "infinitrain", "-o", self.folder / "out2")
        self.assertEqual((self.folder / "out2" / "trainer_state.json").read_text(), text)

    def import_llmc(self, *arguments, **options):
        self.model, held = foreign.gpt2(self.rng, bf16=False)
        self.state, _ = foreign.state_file(self.rng, foreign.num_parameters(held), 8, **options)
        self.json(
            "import",
            self.write("m", self.model),
            self.write("s", self.state),
            "--format",
            "llmc",
            *arguments,
        )

    def exported_llmc(self, step):
        self.notes = self.varve(
            "export", step, "--format", "llmc", "-o", f"{self.folder}/out-{step}/"
        ).stderr
        return (self.folder / f"out-{step}" / f"state_{step:08}_00000.bin").read_bytes()

    def test_llmc(self):
        self.import_llmc()
        self.resume(20)
        state = self.exported_llmc(20)
        self.assertEqual(struct.unpack_from("<i", state, 40), (20,))
        self.assertEqual(state[:40] + state[44:1024], self.state[:40] + self.state[44:1024])
        self.assertNotEqual(state[1024:], self.state[1024:])
        self.assertIn("the position in the data is still that of step 8", self.notes)
        self.assertIn("the generator is still that of step 8", self.notes)
        self.assertEqual(self.exported_llmc(8), self.state)
        self.assertEqual(self.notes, "")

    def test_llmc_with_a_shuffling_loader(self):
        self.import_llmc(shuffle=True)
        self.resume(20)
        state = self.exported_llmc(20)
        self.assertEqual(
            struct.unpack_from("<i", state, 20), (0,)
        )  # its state at step 20 is nowhere
        self.assertIn("without a shuffling loader", self.notes)
        self.assertEqual(len(state), 1024 + 3 * len(self.model[1024:]))
        self.assertEqual(self.exported_llmc(8), self.state)

    def test_llmc_under_another_number(self):
        self.import_llmc("--step", 100, shuffle=True)
        self.assertEqual(
            self.exported_llmc(100), self.state[:40] + struct.pack("<i", 100) + self.state[44:]
        )
        self.assertEqual(self.notes, "")
        self.resume(120)
        self.assertEqual(struct.unpack_from("<i", self.exported_llmc(120), 40), (120,))


if __name__ == "__main__":
    unittest.main()
