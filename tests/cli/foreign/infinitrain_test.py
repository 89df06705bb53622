# SPDX-License-Identifier: Apache-2.0
"""Row 34: what is imported from InfiniTrain is exported byte for byte."""

import json
import unittest

import foreign_bytes as foreign
import harness
import safetensors_bytes as files
from foreign_case import ForeignCase


class InfiniTrainTest(ForeignCase):
    def model(self):
        names = [
            "transformer.wte.weight",
            "lm_head.weight",
            "transformer.h.10.ln_1.bias",
            "transformer.h.9.ln_1.bias",
        ]
        tensors = [(name, foreign.ckpt_tensor(self.rng, "F32", [7, 12])) for name in names]
        tensors += [
            (f"any.{dtype}", foreign.ckpt_tensor(self.rng, dtype, [3, 5]))
            for dtype in foreign.CKPT_DTYPES
        ]
        tensors += [
            ("attn.bias", foreign.ckpt_tensor(self.rng, "F32", [1, 1, 4, 4])),
            ("empty", foreign.ckpt_tensor(self.rng, "BF16", [0, 3])),
            ("é", foreign.ckpt_tensor(self.rng, "I64", [])),
        ]
        self.rng.shuffle(tensors)
        return tensors

    def optimizer(self):
        tensors = [("adam.t", foreign.ckpt_tensor(self.rng, "I64", []))]
        for i in range(11):
            tensors += [
                (f"adam.{kind}.{i}", foreign.ckpt_tensor(self.rng, "F32", [7, 12])) for kind in "mv"
            ]
        self.rng.shuffle(tensors)
        return tensors

    def round_trip(self, contents):
        """Imports a folder of these files and expects them back. Returns the report of the import."""
        folder = self.folder / "checkpoint_step_000005"
        for name, content in contents.items():
            self.write(f"{folder.name}/{name}", content)
        report = self.json("import", folder, "--format", "infinitrain")
        out = self.folder / "out" / folder.name
        out.parent.mkdir()
        exported = self.json("export", report["step"], "--format", "infinitrain", "-o", out)
        self.assertEqual(exported["tensors"], report["tensors"])
        self.assertEqual(sorted(exported["files"]), sorted(str(out / name) for name in contents))
        self.assert_same_files(out, contents)
        return report

    def test_model_optimizer_and_state(self):
        model, optimizer = self.model(), self.optimizer()
        report = self.round_trip(
            {
                "model.ckpt": foreign.ckpt(model),
                "optimizer.ckpt": foreign.ckpt(optimizer),
                "trainer_state.json": foreign.trainer_state(5).encode(),
            }
        )
        self.assertEqual((report["step"], report["tensors"]), (5, len(model) + len(optimizer)))
        self.assert_tensors(
            5, {name: (shape, data) for name, (_, shape, data) in model + optimizer}
        )
        shown = self.json("show", 5)
        self.assertEqual(shown["trainer_state"]["global_step"], 5)
        extra = shown["trainer_state"]["extra"]
        self.assertEqual(
            extra,
            {
                "infinitrain.consumed_batches": 10,
                "infinitrain.last_lr": 0.0003,
                "infinitrain.n_layer": 2,
                "infinitrain.n_head": 3,
                "infinitrain.n_kv_head": 3,
                "infinitrain.n_embd": 12,
                "infinitrain.vocab_size": 200,
            },
        )
        sizes = {name: shown["topology"][name] for name in ("dp", "tp", "sp", "pp", "world_size")}
        self.assertEqual(sizes, {"dp": 2, "tp": 4, "sp": 4, "pp": 3, "world_size": 24})

    def test_sgd_has_no_optimizer_file(self):
        self.round_trip(
            {
                "model.ckpt": foreign.ckpt(self.model()),
                "trainer_state.json": foreign.trainer_state(5).encode(),
            }
        )

    def test_optimizer_file_without_tensors(self):
        self.round_trip(
            {
                "model.ckpt": foreign.ckpt(self.model()),
                "optimizer.ckpt": foreign.ckpt([]),
                "trainer_state.json": foreign.trainer_state(5).encode(),
            }
        )

    def test_valid_state(self):
        text = foreign.trainer_state(2**40, ",")
        json.loads(text)
        report = self.round_trip(
            {"model.ckpt": foreign.ckpt(self.model()), "trainer_state.json": text.encode()}
        )
        self.assertEqual(report["step"], 2**40)

    def test_state_with_another_defect(self):
        text = foreign.trainer_state(5)
        for broken in (
            text.replace("2,", "2", 1),
            text.replace(": 5", ": -5"),
            text.replace(": 5", ': "5"'),
            text[:-3],
            text.replace('"n_head"', '"n_layer"'),
            text.replace(": 3\n", ": 0\n"),
            "[]",
            "",
        ):
            self.write("in/model.ckpt", foreign.ckpt([]))
            self.write("in/trainer_state.json", broken.encode())
            self.fails(
                harness.FAILED,
                "import",
                self.folder / "in",
                "--format",
                "infinitrain",
                says="in/trainer_state.json: ",
            )

    def test_step_must_come_from_somewhere(self):
        model = self.write("in/model.ckpt", foreign.ckpt(self.model()))
        self.fails(harness.USAGE, "import", model.parent, "--format", "infinitrain", says="--step")
        self.assertEqual(
            self.json("import", model.parent, "--format", "infinitrain", "--step", 9)["step"], 9
        )
        self.write("in/trainer_state.json", foreign.trainer_state(5).encode())
        self.assertEqual(
            self.json("import", model.parent, "--format", "infinitrain", "--step", 8)["step"], 8
        )

    def test_files_by_name_and_what_stays(self):
        model = self.write(
            "in/model.ckpt", foreign.ckpt([("w", foreign.ckpt_tensor(self.rng, "F32", [3]))])
        )
        self.json("import", model, "--format", "infinitrain", "--step", 1)
        self.fails(
            harness.FAILED,
            "import",
            model,
            model,
            "--format",
            "infinitrain",
            "--step",
            2,
            says="has that name",
        )
        other = self.write("in/lora.ckpt", b"")
        self.fails(
            harness.FAILED,
            "import",
            other,
            "--format",
            "infinitrain",
            "--step",
            2,
            says="lora.ckpt: expected",
        )
        done = self.varve("import", model.parent, "--format", "infinitrain", "--step", 2)
        self.assertIn("lora.ckpt is not imported", done.stderr)
        self.write("in/optimizer.ckpt", model.read_bytes())
        self.fails(
            harness.FAILED,
            "import",
            model.parent,
            "--format",
            "infinitrain",
            "--step",
            3,
            says='"w" is in two files',
        )

    def test_folders_of_ranks(self):
        (self.folder / "in").mkdir()
        self.write("in/rank_000001/model.ckpt", foreign.ckpt([]))
        self.fails(
            harness.FAILED,
            "import",
            self.folder / "in",
            "--format",
            "infinitrain",
            "--step",
            1,
            says="rank_000001",
        )
        self.json(
            "import", self.folder / "in" / "rank_000001", "--format", "infinitrain", "--step", 1
        )

    def test_damage_is_named(self):
        whole = foreign.ckpt([("w", ("F32", [2], bytes(8)))])
        for changed, says in (
            (
                whole[:-1],
                'in/model.ckpt: tensor "w": at byte 38: the data needs 8 bytes; the file has 7 more',
            ),
            (whole + b"x", "in/model.ckpt: at byte 46: the file goes on for 1 bytes"),
            (b"x" + whole[1:], "in/model.ckpt: at byte 0: the magic number is"),
            (whole[:16] + b"\xff" + whole[17:], "in/model.ckpt: tensor 1 of 1: at byte 16: "),
        ):
            path = self.write("in/model.ckpt", changed)
            self.fails(
                harness.FAILED, "import", path, "--format", "infinitrain", "--step", 1, says=says
            )

    def test_export_of_what_was_saved_otherwise(self):
        tensors = {"adam.m.0": ("F32", [2], bytes(8)), "wte": ("F32", [2], b"12345678")}
        self.save(1, tensors=tensors)
        out = self.folder / "out"
        self.varve("export", 1, "--format", "infinitrain", "-o", out)
        self.assert_same_files(
            out,
            {
                "model.ckpt": foreign.ckpt([("wte", tensors["wte"])]),
                "optimizer.ckpt": foreign.ckpt([("adam.m.0", tensors["adam.m.0"])]),
            },
        )
        self.save(2, tensors={"x": ("F8_E4M3", [2], bytes(2))})
        self.fails(
            harness.FAILED,
            "export",
            2,
            "--format",
            "infinitrain",
            "-o",
            self.folder / "no",
            says="F8_E4M3",
        )
        self.assertFalse((self.folder / "no").exists())

    def test_state_that_was_saved_otherwise_is_valid_json(self):
        tensors = {"w": ("F32", [2], bytes(8))}
        source = files.write(
            self.folder / "x.safetensors", tensors, {"format": "pt"}
        )  # makes a trainer state
        self.varve("import", source, "--step", 6)
        self.varve("export", 6, "--format", "infinitrain", "-o", self.folder / "out")
        self.assertEqual(
            json.loads((self.folder / "out" / "trainer_state.json").read_text()), {"global_step": 6}
        )

    def test_existing_files_stay(self):
        self.write("in/model.ckpt", foreign.ckpt([]))
        self.varve("import", self.folder / "in", "--format", "infinitrain", "--step", 1)
        self.fails(
            harness.EXISTS,
            "export",
            1,
            "--format",
            "infinitrain",
            "-o",
            self.folder / "in",
            says="--force",
        )
        self.varve("export", 1, "--format", "infinitrain", "-o", self.folder / "in", "--force")
        self.write("in/optimizer.ckpt", b"of another step")
        self.fails(
            harness.FAILED,
            "export",
            1,
            "--format",
            "infinitrain",
            "-o",
            self.folder / "in",
            "--force",
            says="optimizer.ckpt is there",
        )


if __name__ == "__main__":
    unittest.main()
