# SPDX-License-Identifier: Apache-2.0
"""Row 34: what is imported from InfiniTrain, llm.c and sharded safetensors is exported byte for byte."""

import json
import struct
import unittest

import foreign_bytes as foreign
import harness
import numpy
import safetensors_bytes as files
from safetensors.numpy import save_file
from verb_case import VerbCase


class ForeignCase(VerbCase):
    def setUp(self):
        super().setUp()
        self.varve("init")

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    def assert_tensors(self, step, tensors, *arguments):
        """{name: (shape, data)} of all tensors that the arguments choose, as safetensors reads them."""
        out = self.folder / "x.safetensors"
        self.varve("export", step, "-o", out, "--force", *arguments)
        self.assertEqual(
            {name: (shape, data) for name, (_, shape, data) in files.read(out).items()}, tensors
        )

    def assert_same_files(self, folder, contents):
        self.assertEqual({path.name: path.read_bytes() for path in folder.iterdir()}, contents)


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


class LlmcTest(ForeignCase):
    def round_trip(self, step, model, held, states=()):
        """Imports these files and expects them back. Every parameter can be read by name."""
        paths = [
            self.write(f"in/{i}.bin", state) for i, state in enumerate(states)
        ]  # states first: any order will do
        self.json(
            "import",
            *paths,
            self.write("in/model.bin", model),
            "--format",
            "llmc",
            *([] if states else ["--step", step]),
        )
        self.assertEqual([row["step"] for row in self.json("steps")][-1], step)
        self.assert_tensors(step, held, "--exclude", "adam.*")
        self.varve("export", step, "--format", "llmc", "-o", f"{self.folder}/out/")
        names = {f"model_{step:08}.bin": model}
        names |= {f"state_{step:08}_{rank:05}.bin": state for rank, state in enumerate(states)}
        self.assert_same_files(self.folder / "out", names)

    def test_gpt2_fp32(self):
        self.round_trip(3, *foreign.gpt2(self.rng, bf16=False))

    def test_gpt2_bf16(self):
        self.round_trip(3, *foreign.gpt2(self.rng, bf16=True))

    def test_gpt2_of_many_layers(self):
        self.round_trip(3, *foreign.gpt2(self.rng, bf16=False, layers=13))

    def test_llama3_fp32(self):
        self.round_trip(3, *foreign.llama3(self.rng, bf16=False, plain=False))

    def test_llama3_bf16(self):
        self.round_trip(3, *foreign.llama3(self.rng, bf16=True, plain=False))

    def test_llama3_of_plain_llmc(self):
        self.round_trip(3, *foreign.llama3(self.rng, bf16=True, plain=True))

    def test_llama3_of_odd_sizes(self):
        for width, factor in ((24, 1.0), (36, 1.7), (64, 0.5)):
            with self.subTest(width=width, factor=factor):
                model, held = foreign.llama3(self.rng, False, False, width=width, factor=factor)
                path = self.write("odd.bin", model)
                self.varve(
                    "import", path, "--format", "llmc", "--step", 1, "--on-existing", "replace"
                )
                self.varve(
                    "export", 1, "--format", "llmc", "-o", self.folder / "odd.out", "--force"
                )
                self.assertEqual((self.folder / "odd.out").read_bytes(), model)

    def test_ints_that_mean_nothing_survive(self):
        model, held = foreign.gpt2(self.rng, bf16=False)
        self.round_trip(3, model[:32] + self.rng.randbytes(992) + model[1024:], held)

    def test_state_with_and_without_masters(self):
        model, held = foreign.gpt2(self.rng, bf16=True)
        for step, master in ((7, True), (8, False)):
            state, vectors = foreign.state_file(
                self.rng, foreign.num_parameters(held), step, master=master
            )
            self.round_trip(step, model, held, [state])
            self.assert_tensors(
                step,
                {name: ([len(data) // 4], data) for name, data in vectors.items()},
                "--include",
                "adam.*",
            )
            harness.shutil.rmtree(self.folder / "out")
        shown = self.json("show", 8)
        self.assertEqual(shown["trainer_state"]["global_step"], 8)
        self.assertEqual(
            shown["trainer_state"]["extra"], {"llmc.shard_index": 3, "llmc.sample_index": 1234}
        )

    def test_state_of_a_shuffling_loader(self):
        model, held = foreign.gpt2(self.rng, bf16=True)
        state, _ = foreign.state_file(self.rng, foreign.num_parameters(held), shuffle=True)
        self.round_trip(7, model, held, [state])

    def test_states_of_several_processes(self):
        model, held = foreign.llama3(self.rng, bf16=True, plain=False)
        count = foreign.num_parameters(held)
        for elements in (count // 2, count):  # shared out (ZeRO-1), or all of it everywhere
            step = elements % 1000
            states = [
                foreign.state_file(self.rng, elements, step, rank, 2, shuffle=True)[0]
                for rank in range(2)
            ]
            self.round_trip(step, model, held, states)
            self.assertEqual(
                self.json("show", step)["topology"]["zero_stage"], int(elements != count)
            )
            harness.shutil.rmtree(self.folder / "out")

    def test_export_of_a_part(self):
        model, held = foreign.gpt2(self.rng, bf16=False)
        state, _ = foreign.state_file(self.rng, foreign.num_parameters(held))
        self.varve("import", self.write("m", model), self.write("s", state), "--format", "llmc")
        out = self.folder / "out"
        self.fails(harness.USAGE, "export", 7, "--format", "llmc", "-o", out, says="no folder")
        self.fails(
            harness.FAILED,
            "export",
            7,
            "--format",
            "llmc",
            "-o",
            out,
            "--exclude",
            "*wpe*",
            says="wpe",
        )
        self.fails(
            harness.USAGE,
            "export",
            7,
            "--format",
            "llmc",
            "-o",
            out,
            "--max-shard-size",
            "1GB",
            says="--max-shard",
        )
        self.varve("export", 7, "--format", "llmc", "-o", out, "--exclude", "adam.*")
        self.assertEqual(out.read_bytes(), model)
        self.save(8)
        self.fails(
            harness.FAILED,
            "export",
            8,
            "--format",
            "llmc",
            "-o",
            out,
            says="not imported from llm.c",
        )

    def test_files_that_do_not_belong_together(self):
        model, held = foreign.gpt2(self.rng, bf16=False)
        count = foreign.num_parameters(held)
        self.write("m", model)
        for name, arguments in {
            "0": {},
            "1": {"rank": 1, "processes": 2},
            "2": {"rank": 1, "processes": 2, "step": 8},
            "3": {"processes": 2},
        }.items():
            self.write(name, foreign.state_file(self.rng, count, **arguments)[0])
        self.write("4", foreign.state_file(self.rng, count - 1)[0])
        for names, says in (
            ("0", "name its model file"),
            ("mm", "a second model file"),
            ("m00", "has rank 0, too"),
            ("m01", "number of processes is 2; another state file has 1"),
            ("m23", "the step is 7; another state file has 8"),
            ("m4", "for the parameters of its model"),
        ):
            self.fails(
                harness.FAILED,
                "import",
                *(self.folder / name for name in names),
                "--format",
                "llmc",
                says=says,
            )

    def test_damage_is_named(self):
        model, _ = foreign.gpt2(self.rng, bf16=False)
        for changed, says in (
            (
                model[:-64],
                f"at byte {len(model) - 64}: the file ends; its header needs {len(model)} bytes",
            ),
            (model + b"x", f"at byte {len(model)}: the file goes on for 1 bytes"),
            (model[:1000], "at byte 1000: the file ends inside its header"),
            (
                model[:4] + struct.pack("<i", 4) + model[8:],
                "at byte 4: the version is 4; expected 3 (FP32)",
            ),
            (struct.pack("<i", 20240520) + model[4:], "at byte 0: the magic number is 20240520"),
        ):
            path = self.write("damaged.bin", changed)
            self.fails(
                harness.FAILED,
                "import",
                path,
                "--format",
                "llmc",
                "--step",
                1,
                says=f"damaged.bin: {says}",
            )


class SafetensorsTest(ForeignCase):
    def test_files_of_the_stock_package_and_their_index(self):
        generator = numpy.random.default_rng(5)
        arrays = {
            f"layer.{i}.w": generator.standard_normal((20, 25)).astype(numpy.float32)
            for i in range(6)
        }
        names = sorted(arrays)
        folder, weight_map = self.folder / "in", {}
        folder.mkdir()
        for i in range(3):
            file = f"model-{i + 1:05}-of-00003.safetensors"
            save_file(
                {name: arrays[name] for name in names[2 * i : 2 * i + 2]},
                folder / file,
                {"format": "pt"},
            )
            weight_map |= {name: file for name in names[2 * i : 2 * i + 2]}
        index = {"metadata": {"total_size": 12_000}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(
            json.dumps(index, indent=2, sort_keys=True) + "\n"
        )
        self.varve("import", folder / "model.safetensors.index.json", "--step", 1)
        out = self.folder / "out"
        out.mkdir()
        self.varve("export", 1, "-o", out, "--max-shard-size", "4KB")
        self.assert_same_files(out, {path.name: path.read_bytes() for path in folder.iterdir()})


if __name__ == "__main__":
    unittest.main()
