# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save and folders of DCP come in without torch, and nothing in them is executed."""

import hashlib
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import unittest
import zipfile

import harness
import safetensors_bytes as files
import torch_bytes as made
from verb_case import VerbCase

GOLDEN = pathlib.Path(__file__).parents[2] / "golden/torch"


class TorchCase(VerbCase):
    def setUp(self):
        super().setUp()
        self.varve("init")

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    def bring(self, path, *arguments, form="torch"):
        return self.json("import", path, "--format", form, *arguments)

    def refuses(self, path, says, form="torch"):
        """The import fails, names the file, and leaves nothing."""
        before = self.steps()
        self.fails(harness.FAILED, "import", path, "--format", form, "--step", 77, says=says)
        self.assertEqual(self.steps(), before)

    def exported(self, step):
        """{name: (shape, data)}"""
        out = self.folder / "out.safetensors"
        self.varve("export", step, "-o", out, "--force")
        return {name: (list(shape), data) for name, (_, shape, data) in files.read(out).items()}


class GoldenTest(TorchCase):
    def test_files_of_torch_2_15(self):
        recorded = json.loads((GOLDEN / "expected.json").read_text())
        self.assertGreaterEqual(len(recorded), 8)
        for step, (name, expected) in enumerate(recorded.items()):
            with self.subTest(name):
                self.bring(GOLDEN / name, "--step", step, form=expected["format"])
                found = {
                    tensor: [shape, hashlib.sha256(data).hexdigest()]
                    for tensor, (shape, data) in self.exported(step).items()
                }
                self.assertEqual(found, expected["tensors"])


class ValuesTest(TorchCase):
    def test_numbers_are_shown_and_the_step_is_known(self):
        state = {
            "step": made.integer(12),
            "epoch": made.integer(3),
            "optimizer": made.mapping({"lr": made.number(0.001), "exp_avg": made.tensor("0", [2])}),
            "name": made.text("run"),
        }
        path = self.write(
            "x.pt", made.archive(made.pickle(made.mapping(state)), {"0": b"12345678"})
        )
        self.assertEqual(self.bring(path)["step"], 12)
        shown = self.json("show", 12)["trainer_state"]
        self.assertEqual((shown["global_step"], shown["epoch"]), (12, 3))
        self.assertEqual(
            shown["extra"],
            {"torch.step": 12, "torch.epoch": 3, "torch.optimizer.lr": 0.001, "torch.name": "run"},
        )
        self.assertEqual(self.exported(12), {"optimizer.exp_avg": ([2], b"12345678")})
        self.assertEqual(self.bring(path, "--step", 13)["step"], 13)
        self.assertEqual(self.json("show", 13)["trainer_state"]["global_step"], 13)
        only = self.write("y.pt", made.state_file({"w": ([2], b"12345678")}))
        self.fails(harness.USAGE, "import", only, "--format", "torch", says="--step is missing")


class HostileTest(TorchCase):
    """Each of these would write a file when Python unpickles it."""

    def attacks(self, marker):
        command = f"touch {marker}"
        code = f"open({str(marker)!r}, 'w')"
        return {
            "os.system": ("posix", "system", command),
            "os.popen": ("os", "popen", command),
            "subprocess.run": ("subprocess", "run", ["touch", str(marker)]),
            "subprocess.Popen": ("subprocess", "Popen", ["touch", str(marker)]),
            "subprocess.getoutput": ("subprocess", "getoutput", command),
            "eval": ("builtins", "eval", code),
            "exec": ("builtins", "exec", code),
            "open": ("builtins", "open", str(marker), "w"),
            "compile": ("builtins", "compile", code, "x", "exec"),
            "import": ("builtins", "__import__", "os"),
            "getattr": ("builtins", "getattr", "x", "upper"),
            "importlib": ("importlib", "import_module", "os"),
            "runpy": ("runpy", "run_path", str(marker)),
            "timeit": ("timeit", "timeit", code),
            "code": ("code", "interact", "x"),
            "pty": ("pty", "spawn", ["touch", str(marker)]),
            "cprofile": ("cProfile", "run", code),
            "os.remove": ("posix", "remove", str(marker)),
            "shutil": ("shutil", "rmtree", str(marker)),
            "pickle.loads": ("_pickle", "loads", b"."),
            "attrgetter": ("operator", "attrgetter", "system"),
            "methodcaller": ("operator", "methodcaller", "system", command),
            "partial": ("functools", "partial", "x"),
            "torch.load": ("torch.serialization", "load", str(marker)),
            "torch.hub": ("torch.hub", "load", "x", "y"),
            "torch.package": ("torch.package", "PackageImporter", str(marker)),
            "numpy": ("numpy", "load", str(marker)),
            "codecs": ("_codecs", "lookup", "zip"),
            "ctypes": ("ctypes", "CDLL", str(marker)),
            "webbrowser": ("webbrowser", "open", "x"),
        }

    def operations(self, argument):
        if isinstance(argument, list):
            return b"](" + b"".join(map(self.operations, argument)) + b"e"
        if isinstance(argument, bytes):
            return b"C" + bytes([len(argument)]) + argument
        return made.text(argument)

    def test_none_is_executed_and_each_is_named(self):
        marker = self.folder / "executed"
        attacks = self.attacks(marker)
        self.assertGreaterEqual(len(attacks), 20)
        for module, function, *arguments in attacks.values():
            called = made.call(module, function, *map(self.operations, arguments))
            by_stack = (
                made.text(module)
                + made.text(function)
                + b"\x93"
                + made.items(*map(self.operations, arguments))
                + b"R"
            )
            for attack in (called, by_stack, made.mapping({"w": called}), called + b"0N"):
                path = self.write("x.pt", made.archive(made.pickle(attack), {}))
                self.refuses(path, f"the pickle uses {module}.{function}, which is neither")
        self.assertFalse(marker.exists())

    def test_the_attack_works_in_python(self):
        """Or the test above would say nothing."""
        marker = self.folder / "executed"
        module, function, *arguments = self.attacks(marker)["os.system"]
        pickle.loads(made.pickle(made.call(module, function, *map(self.operations, arguments))))
        self.assertTrue(marker.exists())

    def test_objects_by_other_operations(self):
        for attack, says in (
            (b"(S'echo'\niposix\nsystem\n", "the operation 0x53"),
            (b"(Kaiposix\nsystem\n", "the operation 0x69"),
            (b"(" + made.text("x") + b"o", "the operation 0x6f"),
            (b"\x82\x01", "the operation 0x82"),
            (b"P123\n", "the operation 0x50"),
            (made.name_of("torch", "Size") + b")}\x92", "the operation 0x92"),
            (b"\x97", "the operation 0x97"),
        ):
            path = self.write("x.pt", made.archive(made.pickle(attack), {}))
            self.refuses(path, 'x.pt: entry "x/data.pkl": at byte ')
            self.refuses(path, says)

    def test_archives_that_lie(self):
        good = made.state_file({"w": ([1000], bytes(range(250)) * 16)})
        at = good.index(bytes(range(250))) + 700
        path = self.write("x.pt", good[:at] + b"?" + good[at + 1 :])
        self.refuses(path, 'x.pt: entry "x/data/0": the bytes have the CRC-32 ')
        self.refuses(self.write("x.pt", good[:-1]), "no end record of a zip archive")
        self.refuses(
            self.write("x.pt", made.state_file({}, order=b"big")), 'the byte order is "big"'
        )
        self.refuses(self.write("x.pt", made.pickle(made.mapping({}))), "before PyTorch 1.6")
        self.refuses(self.folder, "the folder has no pytorch_model.bin or")

    def test_torch_was_told_to_write_no_checksums(self):
        good = made.state_file({"w": ([1000], bytes(range(250)) * 16)})
        with zipfile.ZipFile(io.BytesIO(good)) as archive:
            for entry in archive.infolist():
                good = good.replace(struct.pack("<I", entry.CRC), bytes(4))
        path = self.write("x.pt", good)
        done = self.varve("import", path, "--format", "torch", "--step", 1)
        self.assertIn("x.pt has no checksums: a byte that has changed is not found", done.stderr)
        self.assertEqual(self.exported(1), {"w": ([1000], bytes(range(250)) * 16)})

    def test_deflated_entries(self):
        content = os.urandom(3000) + bytes(1000)
        packed = made.state_file({"w": ([1000], content)}, compression=zipfile.ZIP_DEFLATED)
        self.bring(self.write("x.pt", packed), "--step", 1)
        self.assertEqual(self.exported(1), {"w": ([1000], content)})

    def test_a_file_that_needs_more_memory_than_it_has(self):
        pickled = made.pickle(made.tensor("0", [2**31 - 1, 1000], count=1, strides=[0, 0]))
        self.refuses(
            self.write("x.pt", made.archive(pickled, {"0": b"abcd"})),
            "its tensors need 8589934588000 bytes",
        )


class ShardedTest(TorchCase):
    def setUp(self):
        super().setUp()
        self.place = self.folder / "model"
        self.place.mkdir()
        self.data = {name: ([2], os.urandom(8)) for name in "abc"}
        self.shard("1.bin", "ab")
        self.shard("2.bin", "c")

    def shard(self, file, names):
        content = made.state_file({name: self.data[name] for name in names})
        (self.place / file).write_bytes(content)

    def index(self, weight_map):
        path = self.place / "pytorch_model.bin.index.json"
        path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return path

    def test_a_folder_and_its_index(self):
        index = self.index({"a": "1.bin", "b": "1.bin", "c": "2.bin"})
        for step, path in enumerate((self.place, index)):
            self.bring(path, "--step", step)
            self.assertEqual(self.exported(step), self.data)

    def test_what_is_missing_or_twice(self):
        self.refuses(self.index({"a": "1.bin", "b": "1.bin", "c": "3.bin"}), "3.bin: No such file")
        self.refuses(
            self.index({"a": "1.bin", "b": "1.bin", "c": "2.bin", "d": "2.bin"}),
            'tensor "d" is not in the file "2.bin"',
        )
        self.refuses(self.index({"a": "1.bin", "c": "2.bin"}), "but the index does not name it")
        self.refuses(
            self.index({"a": "2.bin", "b": "1.bin", "c": "2.bin"}), 'but the index says "2.bin"'
        )
        self.refuses(self.index({"a": "../1.bin"}), "no file in the folder of the index")
        self.shard("2.bin", "ca")
        self.refuses(
            self.index({"a": "1.bin", "b": "1.bin", "c": "2.bin"}), 'tensor "a" is in two files: '
        )

    def test_the_same_of_safetensors(self):
        for file, names in (("1.safetensors", "ab"), ("2.safetensors", "c")):
            tensors = {name: ("F32", *self.data[name]) for name in names}
            files.write(self.place / file, tensors)
        index = self.place / "model.safetensors.index.json"
        weights = {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}
        index.write_text(json.dumps({"weight_map": weights}))
        self.bring(self.place, "--step", 1, form="safetensors")
        self.assertEqual(self.exported(1), self.data)
        index.write_text(json.dumps({"weight_map": weights | {"c": "3.safetensors"}}))
        self.refuses(self.place, "3.safetensors: No such file", form="safetensors")

    def test_values_of_several_files_have_no_place(self):
        state = {"w": made.tensor("0", [2]), "epoch": made.integer(3)}
        (self.place / "2.bin").write_bytes(
            made.archive(made.pickle(made.mapping(state)), {"0": b"12345678"})
        )
        index = self.index({"a": "1.bin", "b": "1.bin", "w": "2.bin"})
        self.refuses(index, "2.bin: it holds values that are no tensors")


class DcpTest(TorchCase):
    """The folder that two ranks of torch 2.15 saved, changed."""

    def setUp(self):
        super().setUp()
        self.place = self.folder / "dcp"
        shutil.copytree(GOLDEN / "dcp1", self.place)
        self.metadata = (self.place / ".metadata").read_bytes()

    def change(self, old, new):
        self.assertIn(old, self.metadata)
        self.assertEqual(len(old), len(new))
        (self.place / ".metadata").write_bytes(self.metadata.replace(old, new))

    def test_values_are_kept_and_shown(self):
        self.assertEqual(self.bring(self.place, form="dcp")["step"], 12)
        shown = self.json("show", 12)
        self.assertEqual(shown["items"], ["betas", "dcp.metadata", "lr", "name", "none", "step"])
        extra = shown["trainer_state"]["extra"]
        self.assertEqual((extra["torch.lr"], extra["torch.name"]), (1e-3, "run"))

    def test_each_truncation_of_the_metadata(self):
        for size in [*range(0, len(self.metadata), 97), len(self.metadata) - 1]:
            (self.place / ".metadata").write_bytes(self.metadata[:size])
            self.refuses(self.place, ".metadata: ", form="dcp")

    def test_what_is_missing_or_elsewhere(self):
        self.change(b"__1_0.distcp", b"../_0.distcp")
        self.refuses(self.place, "expected a file of the folder", form="dcp")
        self.change(b"__1_0.distcp", b"__2_0.distcp")
        self.refuses(self.place, "__2_0.distcp: No such file", form="dcp")
        self.change(b"float32", b"float64")
        self.refuses(self.place, "there is no tensor of the dtype and the lengths", form="dcp")
        (self.place / ".metadata").unlink()
        self.refuses(self.place, ".metadata: No such file", form="dcp")
        self.refuses(self.place / "__0_0.distcp", "this is no folder", form="dcp")

    def test_a_file_that_was_cut_or_changed(self):
        path = self.place / "__0_0.distcp"
        content = path.read_bytes()
        for size in range(0, len(content), 511):
            path.write_bytes(content[:size])
            self.refuses(self.place, "__0_0.distcp: from byte ", form="dcp")
        found = 0
        for at in range(0, len(content), 997):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            command = [harness.program("varve"), "-s", self.store, "import", self.place]
            done = subprocess.run(
                [*command, "--format", "dcp", "--step", "77"], capture_output=True, text=True
            )
            if done.returncode == 0:  # a byte between entries, which nothing reads
                self.varve("drop", 77)
            else:
                self.assertEqual(done.returncode, harness.FAILED)
                self.assertIn("__0_0.distcp: from byte ", done.stderr)
                found += 1
        self.assertGreater(found, 3)

    def test_attacks(self):
        attack = made.call("posix", "system", made.text("touch executed"))
        (self.place / ".metadata").write_bytes(made.pickle(attack))
        self.refuses(self.place, "the pickle uses posix.system", form="dcp")


class DcpSafetensorsTest(TorchCase):
    """Folders of DCP's HuggingFaceStorageWriter: each rank has safetensors files with its chunks."""

    def setUp(self):
        super().setUp()
        self.place = self.folder / "hf"
        self.place.mkdir()
        self.values = list(range(24))  # a tensor of 4 x 6

    def box(self, rows, columns):
        """A chunk as (dtype, shape, bytes, offsets)."""
        data = b"".join(struct.pack("<i", self.values[6 * i + j]) for i in rows for j in columns)
        return "I32", [len(rows), len(columns)], data, [rows.start, columns.start]

    def put(self, rank, chunks, info=None):
        if info is None:
            info = {name: {"saved_offsets": chunk[3]} for name, chunk in chunks.items()}
        metadata = {"DCP_SHARDING_INFO": json.dumps(info), "DCP_VERSION": "1.0", "format": "pt"}
        content = files.build({name: chunk[:3] for name, chunk in chunks.items()}, metadata)
        (self.place / f"shard-{rank:05}-model-00001-of-00001.safetensors").write_bytes(content)

    def test_chunks_become_whole_tensors(self):
        whole = struct.pack("<24i", *self.values)
        scalar = ("F32", [], struct.pack("<f", 2.5), [])
        empty = ("I32", [0, 6], b"", [4, 0])
        self.put(
            1, {"rows": self.box(range(0, 3), range(6)), "boxes": self.box(range(4), range(2))}
        )
        self.put(2, {"rows": self.box(range(3, 4), range(6)), "scalar": scalar})
        self.put(3, {"rows": empty, "boxes": self.box(range(0, 2), range(2, 6))})
        self.put(
            4, {"boxes": self.box(range(2, 4), range(2, 6)), "none": ("I8", [0, 3], b"", [0, 0])}
        )
        self.bring(self.place, "--step", 3, form="dcp")
        expected = {
            "rows": ([4, 6], whole),
            "boxes": ([4, 6], whole),
            "scalar": ([], scalar[2]),
            "none": ([0, 3], b""),
        }
        self.assertEqual(self.exported(3), expected)

    def test_what_is_wrong_is_said(self):
        first, second = self.box(range(0, 2), range(6)), self.box(range(2, 4), range(6))
        self.refuses(self.place, ".metadata: No such file", form="dcp")
        self.put(1, {"a": first})
        self.put(2, {"a": self.box(range(1, 4), range(6))})
        self.refuses(self.place, 'tensor "a": two chunks have an element in common', form="dcp")
        self.put(2, {"a": self.box(range(3, 4), range(6))})
        self.refuses(self.place, 'tensor "a": its chunks have 18 elements, expected 24', form="dcp")
        wrong = {
            "is missing": {"b": {}},
            "has no list saved_offsets": {"a": {"saved_offsets": 3}},
            "has 1 offsets, expected 2": {"a": {"saved_offsets": [2]}},
            "has the offset -1": {"a": {"saved_offsets": [-1, 0]}},
            "has the offset 1.5": {"a": {"saved_offsets": [1.5, 0]}},
            "has the offset 9223372036854775807": {"a": {"saved_offsets": [2**63 - 1, 0]}},
            "has the offset 9223372036854775808": {"a": {"saved_offsets": [2**63, 0]}},
        }
        for says, info in wrong.items():
            self.put(2, {"a": second}, info)
            says = f'00001.safetensors: DCP_SHARDING_INFO of tensor "a" {says}'
            self.refuses(self.place, says, form="dcp")
        self.put(2, {"a": ("I16", [2, 6], second[2][:24], [2, 0])})
        self.refuses(self.place, "2 axes of I16, and another file has 2 of I32", form="dcp")
        self.put(2, {"a": second})
        plain = files.build({"b": second[:3]}, {"format": "pt"})
        (self.place / "model.safetensors").write_bytes(plain)
        self.refuses(self.place, "1 of 3 safetensors files have no DCP_SHARDING_INFO", form="dcp")


if __name__ == "__main__":
    unittest.main()
