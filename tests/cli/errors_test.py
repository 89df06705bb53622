# SPDX-License-Identifier: Apache-2.0
"""What goes wrong: every exit code, one clear line on standard error, and nothing changed."""

import json
import os
import random
import struct
import subprocess
import unittest

import harness
import safetensors_bytes as files


class ErrorsTest(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(22)
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        self.tensors = {"w": files.random_tensor(self.rng, "F32", [300_000])}
        self.file = files.write(self.folder / "in.safetensors", self.tensors)
        harness.varve(self.store, "import", self.file, "--init", "--step", 1)

    def fails(self, code, *arguments, says=()):
        done = harness.varve(self.store, *arguments, expect=code)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"^varve: [^\n]+\n$")
        for text in says:
            self.assertIn(text, done.stderr)
        return done.stderr

    def tearDown(self):
        steps = harness.varve_json(self.store, "steps")
        self.assertEqual([step["step"] for step in steps], [1])
        harness.check(self.store)

    def test_usage(self):
        for arguments in (
            [],
            ["bogus"],
            ["ls"],
            ["ls", "1", "*", "extra"],
            ["show", "a b"],
            ["show", "best:"],
            ["show", "x@y@1"],
            ["show", "1", "--bogus"],
            ["import", self.file],
            ["import", self.file, "--step", "-1"],
            ["import", self.file, "--step", "x"],
            ["import", "--step", "2"],
            ["import", self.file, "--step", "2", "--format", "zip"],
            ["import", self.file, "--step", "2", "--metric", "loss"],
            ["import", self.file, "--step", "2", "--tag", "latest"],
            ["import", self.file, "--step", "2", "--tag", "12"],
            ["import", self.file, "--step", "2", "--tag", "a b"],
            ["import", self.file, "--step", "2", "--tag", "a@b"],
            ["import", self.file, "--step", "2", "--run", "a@b"],
            ["import", self.file, "--step", "2", "--derive", "a"],
            ["import", self.file, "--step", "2", "--parent", "latest"],
            ["import", self.file, "--step", "2", "--on-existing", "keep"],
            ["get", "1", "w", "--slice", "::2"],
            ["get", "1", "w", "--slice", ":,:"],
            ["get", "1", "w", "--slice", "300000"],
            ["get", "1", "w", "-o", "x.zip"],
            ["export", "1"],
            ["export", "1", "-o", "x", "--max-shard-size", "5XB"],
            ["drop"],
            ["check", "--read-data-subset", "200%"],
            ["help", "bogus"],
        ):
            self.fails(harness.USAGE, *arguments)

    def test_no_store_given(self):
        environment = {key: value for key, value in os.environ.items() if key != "VARVE_STORE"}
        done = subprocess.run(
            [harness.program("varve"), "steps"], capture_output=True, text=True, env=environment
        )
        self.assertEqual(done.returncode, harness.USAGE)
        self.assertIn("$VARVE_STORE", done.stderr)

    def test_no_store_there(self):
        empty = self.folder / "empty"
        empty.mkdir()
        for place in (self.folder / "gone", empty):
            for arguments in (
                ["steps"],
                ["ls", "1"],
                ["get", "1", "w"],
                ["check"],
                ["stats"],
                ["drop", "1"],
                ["reclaim"],
                ["import", self.file, "--step", "1"],
            ):
                done = harness.varve(place, *arguments, expect=harness.NO_STORE)
                self.assertIn(str(place), done.stderr)
        self.assertFalse((self.folder / "gone").exists())
        self.assertEqual(list(empty.iterdir()), [])

    def test_init_in_a_folder_that_holds_something_else(self):
        other = self.folder / "other"
        other.mkdir()
        (other / "thesis.tex").write_text("")
        harness.varve(other, "init", expect=harness.FAILED)
        self.assertEqual([file.name for file in other.iterdir()], ["thesis.tex"])

    def test_not_found(self):
        for arguments in (
            ["show", "2"],
            ["ls", "2"],
            ["ls", "1", "gone"],
            ["get", "1", "gone"],
            ["get", "2", "w"],
            ["show", "no-such-tag"],
            ["show", "best:loss"],
            ["show", "gone@1"],
            ["show", "gone@latest"],
            ["steps", "--run", "gone"],
            ["export", "2", "-o", "x"],
            ["drop", "2"],
            ["export", "1", "-o", "x", "--include", "gone*"],
            ["get", "1", "w", "--shard", "1"],
        ):
            self.fails(harness.NO_STEP, *arguments)

    def test_already_exists(self):
        self.fails(harness.EXISTS, "init")
        self.fails(harness.EXISTS, "import", self.file, "--step", "1")
        taken = self.folder / "taken.npy"
        taken.write_text("mine")
        for verb in (["get", "1", "w"], ["export", "1"]):
            self.fails(harness.EXISTS, *verb, "-o", taken, says=["--force", str(taken)])
        self.assertEqual(taken.read_text(), "mine")
        harness.varve(self.store, "get", "1", "w", "-o", taken, "--force")
        self.assertNotEqual(taken.read_bytes()[:4], b"mine")

    def test_export_of_shards_keeps_all_or_nothing_of_what_is_there(self):
        out = self.folder / "out"
        out.mkdir()
        (out / "model.safetensors.index.json").write_text("mine")
        two = {
            "a": files.random_tensor(self.rng, "U8", [10]),
            "b": files.random_tensor(self.rng, "U8", [10]),
        }
        store = self.folder / "store2"
        harness.varve(
            store, "import", files.write(self.folder / "two", two), "--init", "--step", "1"
        )
        harness.varve(
            store, "export", "1", "-o", out, "--max-shard-size", "10B", expect=harness.EXISTS
        )
        self.assertEqual([file.name for file in out.iterdir()], ["model.safetensors.index.json"])

    def test_failed_output_leaves_nothing(self):
        self.fails(harness.FAILED, "get", "1", "w", "-o", self.folder / "gone" / "x.npy")
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [harness.program("varve"), "-s", self.store, "ls", "1"],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        self.assertEqual(done.returncode, harness.FAILED)
        self.assertIn("standard output", done.stderr)

    def test_missing_input(self):
        self.fails(harness.FAILED, "import", self.folder / "gone", "--step", "2", says=["gone"])
        self.fails(harness.FAILED, "import", self.folder, "--step", "2")

    def test_malformed_input_does_not_make_a_store(self):
        bad = self.folder / "bad"
        bad.write_bytes(b"")
        harness.varve(
            self.folder / "new", "import", bad, "--init", "--step", "1", expect=harness.FAILED
        )
        self.assertFalse((self.folder / "new").exists())

    def test_malformed_input(self):
        whole = self.file.read_bytes()
        for number, (data, says) in enumerate(
            [
                (b"", "too few"),
                (struct.pack("<Q", 100_000_001) + b"{}", "the limit is 100000000"),
                (struct.pack("<Q", 2**64 - 1) + b"{}", "the limit is 100000000"),
                (struct.pack("<Q", 99) + b"{}", "only 2 bytes after it"),
                (b"PK\x03\x04" + bytes(100), ""),
                (self.header("[]"), "does not start with '{'"),
                (self.header('{"a":'), "not JSON"),
                (
                    self.header(
                        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                        '"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
                        2,
                    ),
                    "twice",
                ),
                (self.entry("F7", [1], [0, 1]), "unknown dtype"),
                (self.entry("U8", [-1], [0, 1]), "shape holds -1"),
                (self.entry("U8", [2**62, 2**62], [0, 1]), "tensor"),
                (self.entry("F64", [2**61], [0, 0]), "tensor"),
                (self.entry("U8", [1], [1, 0]), "end before"),
                (self.entry("U16", [1], [0, 1]), "need 2 bytes"),
                (self.entry("U8", [1], [1, 2], 2), "hole"),
                (self.entry("U8", [1], [0, 1], 2), "after the last tensor"),
                (
                    self.header(
                        '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
                        '"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}',
                        6,
                    ),
                    "inside the tensor before",
                ),
                (whole[:-1], "cut short"),
                (self.entry("U8", [1], [0, 1], name=""), "name"),
                (self.entry("U8", [1], [0, 1], name="n" * 1025), "1025"),
                (self.entry("U8", [1], [0, 1], name="a\0b"), "NUL"),
                (self.header('{"__metadata__":{"a":1}}'), "no string"),
            ]
        ):
            bad = self.folder / f"bad{number}"
            bad.write_bytes(data)
            self.fails(harness.FAILED, "import", bad, "--step", "2", says=[str(bad), says])

    def header(self, text, data_bytes=0):
        return struct.pack("<Q", len(text)) + text.encode() + bytes(data_bytes)

    def entry(self, dtype, shape, offsets, data_bytes=None, name="a"):
        header = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}})
        return self.header(header, max(offsets) if data_bytes is None else data_bytes)

    def test_a_hostile_name_cannot_reach_the_terminal(self):
        bad = self.folder / "bad"
        bad.write_bytes(self.entry("F7", [1], [0, 1], name="\x1b[2J\nvarve: all is well"))
        message = self.fails(harness.FAILED, "import", bad, "--step", "2")
        self.assertNotIn("\x1b", message)

    def test_same_tensor_in_two_files(self):
        other = files.write(self.folder / "other", self.tensors)
        self.fails(
            harness.FAILED,
            "import",
            self.file,
            other,
            "--step",
            "2",
            says=['"w"', "in two files", str(self.file), str(other)],
        )

    def test_a_file_that_is_cut_meanwhile(self):
        size = 4 << 30  # of zeros, which take no disk and more than a second to read
        header = files.build({"w": ("U8", [size], b"")}).replace(b"[0, 0]", b"[0, %d]" % size)
        header = struct.pack("<Q", len(header) - 8) + header[8:]
        big = self.folder / "big"
        big.write_bytes(header)
        whole = len(header) + size
        store = self.folder / "store2"
        harness.varve(store, "init")
        for _ in range(10):  # a busy machine may cut it too late
            os.truncate(big, whole)
            process = subprocess.Popen(
                [harness.program("varve"), "-s", store, "import", big, "--step", "1"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            while process.poll() is None and not self.has_open(process.pid, big):
                pass
            os.truncate(big, 10 << 20)
            _, says = process.communicate()
            harness.check(store)
            if process.returncode != 0:
                break
            harness.varve(store, "drop", "1")
        self.assertEqual(process.returncode, harness.FAILED, says)
        # Where it was cut, or, when the import had not looked at its size yet, what is missing.
        self.assertRegex(says, f"{big}: (at byte {10 << 20}: |.*the file is cut short)")
        self.assertEqual(harness.varve_json(store, "steps"), [])

    @staticmethod
    def has_open(pid, path):
        try:
            return any(
                os.readlink(f"/proc/{pid}/fd/{fd}") == str(path)
                for fd in os.listdir(f"/proc/{pid}/fd")
            )
        except OSError:  # it has ended, or has closed one
            return False

    def test_bad_index(self):
        index = self.folder / "m.index.json"
        for text, says in {
            "": "not JSON",
            "{}": "weight_map",
            '{"weight_map":{"w":"gone.safetensors"}}': "gone.safetensors",
            '{"weight_map":{"w":"in.safetensors","x":"in.safetensors"}}': '"x" is not in the file',
            '{"weight_map":{"x":"in.safetensors"}}': "does not name it",
            '{"weight_map":{"w":"../in.safetensors"}}': "a name that is no file in the folder of the index",
        }.items():
            index.write_text(text)
            self.fails(harness.FAILED, "import", index, "--step", "2", says=[says])


class DamageTest(unittest.TestCase):
    """Changed bytes in the store are found, named and never handed out."""

    def test_changed_bytes_in_a_data_file(self):
        rng = random.Random(23)
        with harness.clean_folder() as folder:
            store, source = folder / "store", folder / "in"
            files.write(source, {"w": files.random_tensor(rng, "U8", [4 << 20])})
            harness.varve(store, "import", source, "--init", "--step", 1)
            largest = max(
                (file for file in store.rglob("*") if file.is_file()),
                key=lambda file: (file.suffix == ".sst") * file.stat().st_size,
            )
            data = bytearray(largest.read_bytes())
            for i in range(len(data) // 2, len(data) // 2 + 64):
                data[i] ^= 0xFF
            largest.write_bytes(data)
            done = harness.varve(store, "--json", "check", "--read-data", expect=harness.DAMAGED)
            report = json.loads(done.stdout)
            self.assertFalse(report["ok"])
            self.assertIn("w", " ".join(report["errors"]))
            self.assertRegex(done.stderr, r"^varve: the store is damaged: \d+ errors?; [^\n]+\n$")
            done = harness.varve(store, "check", "--read-data", expect=harness.DAMAGED)
            self.assertNotIn("no errors", done.stdout)
            for verb in (["get", "1", "w"], ["export", "1"]):
                out = folder / "x.bin"
                done = harness.varve(store, *verb, "-o", out, expect=harness.DAMAGED)
                self.assertIn("w", done.stderr)
                self.assertFalse(out.exists())


if __name__ == "__main__":
    unittest.main()
