# SPDX-License-Identifier: Apache-2.0
"""What the command says when something is wrong, and on which terminal: one line that names it and helps."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import termios
import unittest

import harness
import safetensors_bytes as files
from verb_case import VerbCase


def on_terminal(arguments, columns=80, term="xterm"):
    """The exit code, and what a terminal of so many columns would get from standard output and error."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [harness.program("varve"), *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": term},
    )
    os.close(theirs)
    shown = b""
    while True:
        select.select([ours], [], [])
        try:
            part = os.read(ours, 65536)
        except OSError:  # the command has closed its end
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return process.wait(), shown


class MessagesTest(VerbCase):
    def setUp(self):
        super().setUp()
        self.save(1)

    def test_a_lost_file_that_names_others_is_damage(self):
        for name in ("CURRENT", "MANIFEST", "db"):
            store = self.folder / f"without-{name}"
            harness.shutil.copytree(self.store, store)
            lost = store / "db" if name == "db" else next((store / "db").glob(name + "*"))
            harness.shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
            for arguments in (
                ["steps"],
                ["runs"],
                ["stats"],
                ["ls", 1],
                ["get", 1, "w"],
                ["check"],
                ["tag", 1, "t"],
                ["import", self.folder / "in", "--step", 2],
            ):
                done = harness.varve(store, *arguments, expect=harness.DAMAGED)
                self.assertIn(f"{lost} is missing", done.stderr, arguments)
                self.assertIn("docs/operations.md", done.stderr)
                self.assertEqual(done.stdout, "")

    def test_damage_says_what_to_do(self):
        store = self.folder / "damaged"
        harness.shutil.copytree(self.store, store)
        largest = max(store.rglob("*.sst"), key=lambda file: file.stat().st_size)
        data = bytearray(largest.read_bytes())
        data[len(data) // 2] ^= 0xFF
        largest.write_bytes(data)
        done = harness.varve(store, "get", 1, "w", expect=harness.DAMAGED)
        self.assertIn(
            "varve check lists all damage, varve repair --dry-run what can be kept, and "
            "docs/operations.md says what to do",
            done.stderr,
        )

    def test_a_cut_or_lost_table_file_is_named_with_its_sizes(self):
        largest = max(self.store.rglob("*.sst"), key=lambda file: file.stat().st_size)
        bytes_of_it = largest.stat().st_size
        for kept in (None, 0, 500):
            store = self.folder / f"with-{kept}"
            harness.shutil.copytree(self.store, store)
            table = store / largest.relative_to(self.store)
            table.unlink() if kept is None else os.truncate(table, kept)
            found = (
                f"is missing, expected {bytes_of_it} bytes"
                if kept is None
                else f"has {kept} bytes, expected {bytes_of_it}"
            )
            for arguments in (["tag", 1, "t"], ["check"], ["get", 1, "w"]):
                done = harness.varve(store, *arguments, expect=harness.DAMAGED)
                self.assertIn(
                    f"table file {table} of family chunks {found}",
                    done.stdout + done.stderr,
                    arguments,
                )
                self.assertNotIn(".ldb", done.stderr)

    def test_no_folder_is_not_no_store(self):
        gone = harness.varve(self.folder / "gone", "steps", expect=harness.NO_STORE).stderr
        self.assertIn("there is no such folder", gone)
        (self.folder / "empty").mkdir()
        empty = harness.varve(self.folder / "empty", "steps", expect=harness.NO_STORE).stderr
        self.assertIn("it has no FORMAT file", empty)

    def test_a_lost_format_file_is_damage(self):
        kept = (self.store / "FORMAT").rename(self.folder / "kept")
        for arguments in (["steps"], ["check"], ["tag", 1, "t"], ["init"]):
            done = self.varve(*arguments, expect=harness.DAMAGED)
            self.assertIn(f"{self.store / 'FORMAT'} is missing", done.stderr)
            self.assertIn("put the file back", done.stderr)
        kept.rename(self.store / "FORMAT")

    def test_unknown_verbs_suggest(self):
        for typed, meant in {
            "cehck": "check",
            "step": "steps",
            "lss": "ls",
            "inport": "import",
            "Export": "export",
        }.items():
            self.fails(
                harness.USAGE, typed, says=f'there is no verb "{typed}"; did you mean {meant}?'
            )
        self.fails(harness.USAGE, "help", "bacckup", says="did you mean backup?")
        self.fails(
            harness.USAGE, "frobnicate", says='there is no verb "frobnicate" (see varve help)'
        )

    def test_unknown_options_suggest(self):
        for words, typed, meant in (
            (("steps", "--lsat", "2"), "--lsat", "--last"),
            (("steps", "--lsat=2"), "--lsat", "--last"),
            (("--jsno", "steps"), "--jsno", "--json"),
            (("drop", "1", "--dryrun"), "--dryrun", "--dry-run"),
            (("ls", "1", "--store"), "--store", None),  # that is one without its value
        ):
            says = f'there is no option "{typed}"; did you mean {meant}?' if meant else typed
            self.fails(harness.USAGE, *words, says=says)
        self.fails(harness.USAGE, "ls", "1", "--last", says='there is no option "--last" (see')
        self.fails(harness.USAGE, "runs", "main", says="not expected: main")

    def test_json_of_help_and_completion(self):
        self.assertEqual(self.json("help", "ls")["about"], "ls")
        self.assertEqual(self.json("help", "ls")["text"], self.varve("help", "ls").stdout)
        self.assertEqual(self.json("help", "words")["text"], self.varve("help", "words").stdout)
        self.assertEqual(self.json("help")["text"], self.varve("help").stdout)
        self.assertEqual(
            self.json("completion", "bash"),
            {"shell": "bash", "script": self.varve("completion", "bash").stdout},
        )

    def test_json_of_the_options_help_and_version(self):
        for arguments, verb in (
            (["--json", "--help"], ["help"]),
            (["-h", "--json"], ["help"]),
            (["--json", "ls", "--help"], ["help", "ls"]),
            (["ls", "--help", "--json"], ["help", "ls"]),
            (["--json", "--version"], ["version"]),
            (["--version", "--json"], ["version"]),
        ):
            shown = json.loads(self.varve(*arguments).stdout)
            self.assertEqual(shown, self.json(*verb), arguments)
            text = [word for word in arguments if word != "--json"]
            self.assertEqual(self.varve(*text).stdout, self.varve(*verb).stdout, arguments)

    def test_metavar_is_whole(self):
        self.assertIn("--keep-best METRIC[:max|:min]:N\n", self.varve("help", "forget").stdout)
        self.assertIn("METRIC[:max|:min]:N", self.varve("help", "--man").stdout)

    def test_what_torch_saves_is_called_so(self):
        path = self.folder / "model.pt"
        for first, says in (
            (b"PK\x03\x04", "model.pt: this is a zip archive, as torch.save (.pt, .pth, .bin)"),
            (b"\x80\x02", "model.pt: this is a pickle of Python's"),
        ):
            path.write_bytes(first + bytes(100))
            self.fails(harness.FAILED, "import", path, "--step", 2, says=says)

    def test_long_names_are_cut(self):
        name = "n" * 1000
        done = self.varve("get", 1, name, expect=harness.NO_STEP)
        self.assertIn("n" * 80 + "...(", done.stderr)
        self.assertLess(len(done.stderr), 400)

    def test_replaced_step_says_what_stays(self):
        self.save(5, "--tag", "release", "--metric", "loss=2.5", seed=1)
        source = files.write(
            self.folder / "other", {"w": files.random_tensor(self.rng, "F32", [3])}
        )
        again = ("import", source, "--step", 5, "--on-existing", "replace")
        done = self.varve(*again)
        self.assertIn("step 5 was replaced: its tag release now names the new bytes", done.stderr)
        self.assertIn("step 5 was replaced: the old metrics are gone: loss=2.5", done.stderr)
        report = json.loads(self.varve("--json", *again, "--metric", "loss=1").stdout)
        self.assertEqual(report["replaced"], {"tags": ["release"], "metrics": {}})
        self.assertEqual(self.json("show", "release")["step"], 5)
        self.assertNotIn(
            "replaced",
            json.loads(
                self.varve(
                    "--json", "import", source, "--step", 6, "--on-existing", "replace"
                ).stdout
            ),
        )


class ExportFoldersTest(VerbCase):
    def setUp(self):
        super().setUp()
        self.save(1, tensors={name: files.random_tensor(self.rng, "U8", [10]) for name in "abcd"})
        self.out = self.folder / "some" / "new" / "folder"

    def names(self):
        return sorted(path.name for path in self.out.iterdir())

    def test_missing_folders_are_made(self):
        self.varve("export", 1, "-o", self.out / "x.safetensors")
        self.assertEqual(self.names(), ["x.safetensors"])
        self.varve("export", 1, "-o", f"{self.out}/deeper/")
        self.assertTrue((self.out / "deeper" / "model.safetensors").is_file())
        self.varve("export", 1, "--format", "infinitrain", "-o", self.out / "a" / "b")
        self.assertTrue((self.out / "a" / "b" / "model.ckpt").is_file())

    def test_failed_exports_leave_no_folder(self):
        self.fails(
            harness.FAILED, "export", 1, "-o", "/proc/varve/x.safetensors", says="/proc/varve"
        )
        blocked = self.folder / "some"
        blocked.write_text("a file")
        self.fails(harness.FAILED, "export", 1, "-o", self.out / "x.safetensors", says="some")

    def test_leftovers_of_its_own_set_go(self):
        def shards(*numbers, of):
            return [f"model-{number:05}-of-{of:05}.safetensors" for number in numbers]

        index = "model.safetensors.index.json"
        self.out.mkdir(parents=True)
        others = ["model-1-of-2.safetensors", "model2.safetensors", "notes.txt"]
        for name in others:
            (self.out / name).write_text("mine")
        self.varve("export", 1, "-o", self.out, "--max-shard-size", "10B")
        self.assertEqual(self.names(), sorted([*others, *shards(1, 2, 3, 4, of=4), index]))
        self.fails(harness.EXISTS, "export", 1, "-o", self.out, says="--force")
        self.assertEqual(self.names(), sorted([*others, *shards(1, 2, 3, 4, of=4), index]))
        done = self.varve("export", 1, "-o", self.out, "--max-shard-size", "20B", "--force")
        self.assertEqual(self.names(), sorted([*others, *shards(1, 2, of=2), index]))
        self.assertIn("removed", done.stderr)
        self.varve("export", 1, "-o", self.out, "--force")
        self.assertEqual(self.names(), sorted([*others, "model.safetensors"]))
        self.varve("export", 1, "-o", self.out, "--max-shard-size", "20B", "--force")
        self.assertEqual(self.names(), sorted([*others, *shards(1, 2, of=2), index]))


class TerminalTest(VerbCase):
    def test_nothing_raw_reaches_a_terminal(self):
        hostile = "\u009b2J\x7f\u202e\u2028\u2029\u206a"
        source = files.write(
            self.folder / "in", {hostile: files.random_tensor(self.rng, "U8", [4])}
        )
        self.varve(
            "import", source, "--init", "--step", 1, "--tag", hostile, "--metric", f"{hostile}=1"
        )
        raw = os.fsencode(self.folder) + b"/\xff\x9b\xfe"
        code, shown = on_terminal(
            ["-s", self.store, "get", "1", hostile, "-o", os.fsdecode(raw) + ".bin"]
        )
        self.assertEqual(code, 0, shown)
        lines = [shown]
        for arguments in (
            ["ls", "1"],
            ["show", "1"],
            ["steps"],
            ["log", hostile],
            ["get", "1", hostile],
            ["show", hostile],
            ["--json", "ls", "1"],
            ["--json", "show", "1"],
            ["--json", "steps"],
            ["get", "1", "x" + hostile],
            ["show", "x\u009b"],
            ["x\u009b"],
            ["export", "1", "-o", os.fsdecode(raw)],
            ["copy", "1", os.fsdecode(raw)],
            ["import", os.fsdecode(raw + b"y"), "--step", "7"],
            ["diff", "1", "1"],
            ["stats"],
            ["check"],
        ):
            lines.append(on_terminal(["-s", self.store, *arguments])[1])
        lines.append(on_terminal(["-s", os.fsdecode(raw), "init"])[1])
        for text in lines:
            for byte in (
                b"\xff",
                b"\xfe",
                b"\xc2\x9b",
                b"\x7f",
                "\u202e".encode(),
                "\u2028".encode(),
            ):
                self.assertNotIn(byte, text)
            text.decode("utf-8")

    def test_a_terminal_gets_no_tensor_unless_forced(self):
        self.varve("init")
        self.save(1, tensors={"w": ("U8", [4], b"abc\n")})
        get = ["-s", self.store, "get", "1", "w", "-o", "-"]
        code, shown = on_terminal(get)
        self.assertEqual(code, harness.USAGE)
        self.assertIn(b"standard output is a terminal", shown)
        self.assertEqual(on_terminal([*get, "--force"]), (0, b"abc\r\n"))

    def test_bars_fit_and_spare_dumb_terminals(self):
        source = files.write(
            self.folder / "in", {"w": files.random_tensor(self.rng, "U8", [64 << 20])}
        )
        self.varve("import", source, "--init", "--step", 1)
        for columns in (30, 80):
            code, shown = on_terminal(["-s", self.store, "check", "--read-data"], columns)
            self.assertEqual(code, 0, shown)
            for line in shown.split(b"\r\x1b[K")[1:-1]:  # drawn when it took long enough
                self.assertLess(len(line), columns)
        code, shown = on_terminal(["-s", self.store, "check", "--read-data"], term="dumb")
        self.assertEqual(code, 0, shown)
        self.assertNotIn(b"\x1b", shown)


if __name__ == "__main__":
    unittest.main()
