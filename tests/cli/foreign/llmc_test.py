# SPDX-License-Identifier: Apache-2.0
"""Row 34: what is imported from llm.c is exported byte for byte."""

import struct
import unittest

import foreign_bytes as foreign
import harness
from foreign_case import ForeignCase


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


if __name__ == "__main__":
    unittest.main()
