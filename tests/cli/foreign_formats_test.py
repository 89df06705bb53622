# SPDX-License-Identifier: Apache-2.0
"""Row 34: what is imported from InfiniTrain, llm.c and sharded safetensors is exported byte for byte."""

import json
import struct
import unittest

import numpy
from safetensors.numpy import save_file

import foreign_bytes as foreign
import harness
import safetensors_bytes as files
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

    def assert_tensor(self, step, name, data, *arguments):
        out = self.folder / "x.bin"
        self.varve("get", step, name, "-o", out, "--force", *arguments)
        self.assertEqual(out.read_bytes(), data, name)

    def assert_same_files(self, folder, contents):
        self.assertEqual({path.name: path.read_bytes() for path in folder.iterdir()}, contents)


class Row34InfiniTrainTest(ForeignCase):
    def model(self):
        names = ["transformer.wte.weight", "lm_head.weight", "transformer.h.10.ln_1.bias", "transformer.h.9.ln_1.bias"]
        tensors = [(name, foreign.ckpt_tensor(self.rng, "F32", [7, 12])) for name in names]
        tensors += [(f"any.{dtype}", foreign.ckpt_tensor(self.rng, dtype, [3, 5])) for dtype in foreign.CKPT_DTYPES]
        tensors += [("attn.bias", foreign.ckpt_tensor(self.rng, "F32", [1, 1, 4, 4])),
                    ("empty", foreign.ckpt_tensor(self.rng, "BF16", [0, 3])), ("é", foreign.ckpt_tensor(self.rng, "I64", []))]
        self.rng.shuffle(tensors)
        return tensors

    def optimizer(self):
        tensors = [("adam.t", foreign.ckpt_tensor(self.rng, "I64", []))]
        for i in range(11):
            tensors += [(f"adam.{kind}.{i}", foreign.ckpt_tensor(self.rng, "F32", [7, 12])) for kind in "mv"]
        self.rng.shuffle(tensors)
        return tensors

    def round_trip(self, contents):
        """Imports a folder of these files and expects them back; returns the report of the import."""
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
        report = self.round_trip({"model.ckpt": foreign.ckpt(model), "optimizer.ckpt": foreign.ckpt(optimizer),
                                  "trainer_state.json": foreign.trainer_state(5).encode()})
        self.assertEqual((report["step"], report["tensors"]), (5, len(model) + len(optimizer)))
        for name, (_, _, data) in model + optimizer:
            self.assert_tensor(5, name, data)
        shown = self.json("show", 5)
        self.assertEqual(shown["trainer_state"]["global_step"], 5)
        extra = shown["trainer_state"]["extra"]
        self.assertEqual(extra, {"infinitrain.consumed_batches": 10, "infinitrain.last_lr": 0.0003,
                                 "infinitrain.n_layer": 2, "infinitrain.n_head": 3, "infinitrain.n_kv_head": 3,
                                 "infinitrain.n_embd": 12, "infinitrain.vocab_size": 200})
        sizes = {name: shown["topology"][name] for name in ("dp", "tp", "sp", "pp", "world_size")}
        self.assertEqual(sizes, {"dp": 2, "tp": 4, "sp": 4, "pp": 3, "world_size": 24})

    def test_sgd_has_no_optimizer_file(self):
        self.round_trip({"model.ckpt": foreign.ckpt(self.model()),
                         "trainer_state.json": foreign.trainer_state(5).encode()})

    def test_optimizer_file_without_tensors(self):
        self.round_trip({"model.ckpt": foreign.ckpt(self.model()), "optimizer.ckpt": foreign.ckpt([]),
                         "trainer_state.json": foreign.trainer_state(5).encode()})

    def test_valid_state(self):
        text = foreign.trainer_state(2**40, ",")
        json.loads(text)
        report = self.round_trip({"model.ckpt": foreign.ckpt(self.model()), "trainer_state.json": text.encode()})
        self.assertEqual(report["step"], 2**40)

    def test_state_with_another_defect(self):
        text = foreign.trainer_state(5)
        for broken in (text.replace("2,", "2", 1), text.replace(": 5", ": -5"), text.replace(": 5", ': "5"'), text[:-3],
                       text.replace('"n_head"', '"n_layer"'), text.replace(": 3\n", ": 0\n"), "[]", ""):
            self.write("in/model.ckpt", foreign.ckpt([]))
            self.write("in/trainer_state.json", broken.encode())
            self.fails(harness.FAILED, "import", self.folder / "in", "--format", "infinitrain",
                       says="in/trainer_state.json: ")

    def test_step_must_come_from_somewhere(self):
        model = self.write("in/model.ckpt", foreign.ckpt(self.model()))
        self.fails(harness.USAGE, "import", model.parent, "--format", "infinitrain", says="--step")
        self.assertEqual(self.json("import", model.parent, "--format", "infinitrain", "--step", 9)["step"], 9)
        self.write("in/trainer_state.json", foreign.trainer_state(5).encode())
        self.assertEqual(self.json("import", model.parent, "--format", "infinitrain", "--step", 8)["step"], 8)

    def test_files_by_name_and_what_stays(self):
        model = self.write("in/model.ckpt", foreign.ckpt([("w", foreign.ckpt_tensor(self.rng, "F32", [3]))]))
        self.json("import", model, "--format", "infinitrain", "--step", 1)
        self.fails(harness.FAILED, "import", model, model, "--format", "infinitrain", "--step", 2, says="has that name")
        other = self.write("in/lora.ckpt", b"")
        self.fails(harness.FAILED, "import", other, "--format", "infinitrain", "--step", 2, says="lora.ckpt: expected")
        done = self.varve("import", model.parent, "--format", "infinitrain", "--step", 2)
        self.assertIn("lora.ckpt is not imported", done.stderr)
        self.write("in/optimizer.ckpt", model.read_bytes())
        self.fails(harness.FAILED, "import", model.parent, "--format", "infinitrain", "--step", 3, says='"w" is in two files')

    def test_folders_of_ranks(self):
        (self.folder / "in").mkdir()
        self.write("in/rank_000001/model.ckpt", foreign.ckpt([]))
        self.fails(harness.FAILED, "import", self.folder / "in", "--format", "infinitrain", "--step", 1,
                   says="rank_000001")
        self.json("import", self.folder / "in" / "rank_000001", "--format", "infinitrain", "--step", 1)

    def test_damage_is_named(self):
        whole = foreign.ckpt([("w", ("F32", [2], bytes(8)))])
        for changed, says in ((whole[:-1], "in/model.ckpt: tensor \"w\": at byte 38: the data needs 8 bytes; the file has 7 more"),
                              (whole + b"x", "in/model.ckpt: at byte 46: the file goes on for 1 bytes"),
                              (b"x" + whole[1:], "in/model.ckpt: at byte 0: the magic number is"),
                              (whole[:16] + b"\xff" + whole[17:], "in/model.ckpt: tensor 1 of 1: at byte 16: ")):
            path = self.write("in/model.ckpt", changed)
            self.fails(harness.FAILED, "import", path, "--format", "infinitrain", "--step", 1, says=says)

    def test_export_of_what_was_saved_otherwise(self):
        tensors = {"adam.m.0": ("F32", [2], bytes(8)), "wte": ("F32", [2], b"12345678")}
        self.save(1, tensors=tensors)
        out = self.folder / "out"
        self.varve("export", 1, "--format", "infinitrain", "-o", out)
        self.assert_same_files(out, {"model.ckpt": foreign.ckpt([("wte", tensors["wte"])]),
                                     "optimizer.ckpt": foreign.ckpt([("adam.m.0", tensors["adam.m.0"])])})
        self.save(2, tensors={"x": ("F8_E4M3", [2], bytes(2))})
        self.fails(harness.FAILED, "export", 2, "--format", "infinitrain", "-o", self.folder / "no", says="F8_E4M3")
        self.assertFalse((self.folder / "no").exists())

    def test_state_that_was_saved_otherwise_is_valid_json(self):
        tensors = {"w": ("F32", [2], bytes(8))}
        source = files.write(self.folder / "x.safetensors", tensors, {"format": "pt"})  # makes a trainer state
        self.varve("import", source, "--step", 6)
        self.varve("export", 6, "--format", "infinitrain", "-o", self.folder / "out")
        self.assertEqual(json.loads((self.folder / "out" / "trainer_state.json").read_text()), {"global_step": 6})

    def test_existing_files_stay(self):
        self.write("in/model.ckpt", foreign.ckpt([]))
        self.varve("import", self.folder / "in", "--format", "infinitrain", "--step", 1)
        self.fails(harness.EXISTS, "export", 1, "--format", "infinitrain", "-o", self.folder / "in", says="--force")
        self.varve("export", 1, "--format", "infinitrain", "-o", self.folder / "in", "--force")
        self.write("in/optimizer.ckpt", b"of another step")
        self.fails(harness.FAILED, "export", 1, "--format", "infinitrain", "-o", self.folder / "in", "--force",
                   says="optimizer.ckpt is there")


class Row34LlmcTest(ForeignCase):
    def round_trip(self, step, model, held, states=()):
        """Imports these files and expects them back; every parameter can be asked for by name."""
        paths = [self.write(f"in/{i}.bin", state) for i, state in enumerate(states)]  # states first: any order will do
        self.json("import", *paths, self.write("in/model.bin", model), "--format", "llmc",
                  *([] if states else ["--step", step]))
        self.assertEqual([row["step"] for row in self.json("steps")][-1], step)
        rows = {row["name"]: row for row in self.json("ls", step)}
        for name, (shape, data) in held.items():
            self.assertEqual(rows[name]["shape"], shape)
            self.assert_tensor(step, name, data)
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
                self.varve("import", path, "--format", "llmc", "--step", 1, "--on-existing", "replace")
                self.varve("export", 1, "--format", "llmc", "-o", self.folder / "odd.out", "--force")
                self.assertEqual((self.folder / "odd.out").read_bytes(), model)

    def test_ints_that_mean_nothing_survive(self):
        model, held = foreign.gpt2(self.rng, bf16=False)
        self.round_trip(3, model[:32] + self.rng.randbytes(992) + model[1024:], held)

    def test_state_with_and_without_masters(self):
        model, held = foreign.gpt2(self.rng, bf16=True)
        for step, master in ((7, True), (8, False)):
            state, vectors = foreign.state_file(self.rng, foreign.num_parameters(held), step, master=master)
            self.round_trip(step, model, held, [state])
            for name, data in vectors.items():
                self.assert_tensor(step, name, data)
            harness.shutil.rmtree(self.folder / "out")
        shown = self.json("show", 8)
        self.assertEqual(shown["trainer_state"]["global_step"], 8)
        self.assertEqual(shown["trainer_state"]["extra"], {"llmc.shard_index": 3, "llmc.sample_index": 1234})

    def test_state_of_a_shuffling_loader(self):
        model, held = foreign.gpt2(self.rng, bf16=True)
        state, _ = foreign.state_file(self.rng, foreign.num_parameters(held), shuffle=True)
        self.round_trip(7, model, held, [state])

    def test_states_of_several_processes(self):
        model, held = foreign.llama3(self.rng, bf16=True, plain=False)
        count = foreign.num_parameters(held)
        for elements in (count // 2, count):  # shared out (ZeRO-1), or all of it everywhere
            step = elements % 1000
            states = [foreign.state_file(self.rng, elements, step, rank, 2, shuffle=True)[0] for rank in range(2)]
            self.round_trip(step, model, held, states)
            self.assertEqual(self.json("show", step)["topology"]["zero_stage"], int(elements != count))
            harness.shutil.rmtree(self.folder / "out")

    def test_export_of_a_part(self):
        model, held = foreign.gpt2(self.rng, bf16=False)
        state, _ = foreign.state_file(self.rng, foreign.num_parameters(held))
        self.varve("import", self.write("m", model), self.write("s", state), "--format", "llmc")
        out = self.folder / "out"
        self.fails(harness.USAGE, "export", 7, "--format", "llmc", "-o", out, says="no folder")
        self.fails(harness.FAILED, "export", 7, "--format", "llmc", "-o", out, "--exclude", "*wpe*", says="wpe")
        self.fails(harness.USAGE, "export", 7, "--format", "llmc", "-o", out, "--max-shard-size", "1GB", says="--max-shard")
        self.varve("export", 7, "--format", "llmc", "-o", out, "--exclude", "adam.*")
        self.assertEqual(out.read_bytes(), model)
        self.save(8)
        self.fails(harness.FAILED, "export", 8, "--format", "llmc", "-o", out, says="not imported from llm.c")

    def test_files_that_do_not_belong_together(self):
        model, held = foreign.gpt2(self.rng, bf16=False)
        count = foreign.num_parameters(held)
        self.write("m", model)
        for name, arguments in {"0": {}, "1": {"rank": 1, "processes": 2}, "2": {"rank": 1, "processes": 2, "step": 8},
                                "3": {"processes": 2}}.items():
            self.write(name, foreign.state_file(self.rng, count, **arguments)[0])
        self.write("4", foreign.state_file(self.rng, count - 1)[0])
        for names, says in (("0", "name its model file"), ("mm", "a second model file"), ("m00", "has rank 0, too"),
                            ("m01", "number of processes is 2; another state file has 1"),
                            ("m23", "the step is 7; another state file has 8"), ("m4", "for the parameters of its model")):
            self.fails(harness.FAILED, "import", *(self.folder / name for name in names), "--format", "llmc", says=says)

    def test_damage_is_named(self):
        model, _ = foreign.gpt2(self.rng, bf16=False)
        for changed, says in ((model[:-64], f"at byte {len(model) - 64}: the file ends; its header needs {len(model)} bytes"),
                              (model + b"x", f"at byte {len(model)}: the file goes on for 1 bytes"),
                              (model[:1000], "at byte 1000: the file ends inside its header"),
                              (model[:4] + struct.pack("<i", 4) + model[8:], "at byte 4: the version is 4; expected 3 (FP32)"),
                              (struct.pack("<i", 20240520) + model[4:], "at byte 0: the magic number is 20240520")):
            path = self.write("damaged.bin", changed)
            self.fails(harness.FAILED, "import", path, "--format", "llmc", "--step", 1, says=f"damaged.bin: {says}")


class Row34SafetensorsTest(ForeignCase):
    def test_files_of_the_stock_package_and_their_index(self):
        generator = numpy.random.default_rng(5)
        arrays = {f"layer.{i}.w": generator.standard_normal((20, 25)).astype(numpy.float32) for i in range(6)}
        names = sorted(arrays)
        folder, weight_map = self.folder / "in", {}
        folder.mkdir()
        for i in range(3):
            file = f"model-{i + 1:05}-of-00003.safetensors"
            save_file({name: arrays[name] for name in names[2 * i:2 * i + 2]}, folder / file, {"format": "pt"})
            weight_map |= {name: file for name in names[2 * i:2 * i + 2]}
        index = {"metadata": {"total_size": 12_000}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        self.varve("import", folder / "model.safetensors.index.json", "--step", 1)
        out = self.folder / "out"
        out.mkdir()
        self.varve("export", 1, "-o", out, "--max-shard-size", "4KB")
        self.assert_same_files(out, {path.name: path.read_bytes() for path in folder.iterdir()})


if __name__ == "__main__":
    unittest.main()
