# SPDX-License-Identifier: Apache-2.0
"""Every verb as a user types it: what it prints, as text and as JSON, and what it changes."""

import datetime
import os
import random
import struct
import subprocess
import unittest

import harness
import safetensors_bytes as files
import verb_case

STEP_KEYS = {
    "run",
    "step",
    "created",
    "parent",
    "logical_bytes",
    "new_bytes",
    "stored_bytes",
    "metrics",
    "tags",
}
BYTES = 4 * 300_000  # of one step


class VerbsTest(verb_case.VerbCase):
    def test_init(self):
        self.assertEqual(self.json("init"), {"store": str(self.store), "sealed": False})
        self.assertEqual(self.json("steps"), [])
        self.assertEqual(self.json("runs"), [])
        self.assertEqual(self.json("stats")["steps"], 0)
        self.varve("init", expect=harness.EXISTS)

    def test_import_reports_what_is_new(self):
        first = self.save(1)
        self.assertEqual((first["run"], first["step"], first["tensors"]), ("main", 1, 1))
        self.assertEqual((first["logical_bytes"], first["new_bytes"]), (BYTES, BYTES))
        self.assertGreater(first["stored_bytes"], 0)
        self.assertGreater(first["seconds"], 0)
        self.assert_adds_up(first, "new_bytes")
        same = self.save(2, seed=1)
        self.assertEqual(
            (same["logical_bytes"], same["new_bytes"], same["stored_bytes"]), (BYTES, 0, 0)
        )
        self.assertEqual((same["by_codec"], same["by_coder"]), ({}, {}))

    def test_import_as_text(self):
        source = files.write(self.folder / "in", {"w": files.random_tensor(self.rng, "U8", [2048])})
        done = self.varve("import", source, "--init", "--step", 1)
        self.assertRegex(
            done.stdout, r"^step 1: 1 tensor, 2\.0 KiB, of which 2\.0 KiB new, stored in .*\n$"
        )
        self.assertEqual(done.stderr, "")
        self.assertEqual(self.varve("-q", "import", source, "--step", 2).stdout, "")

    def test_import_into_an_existing_step(self):
        self.save(1)
        source = self.folder / "in"
        done = self.varve("import", source, "--step", 1, expect=harness.EXISTS)
        self.assertIn("1", done.stderr)
        self.save(1, "--on-existing", "replace", seed=7)
        self.assertEqual(self.steps(), [("main", 1)])
        expected = files.random_tensor(random.Random(7), "F32", [300_000])[2]
        out = self.folder / "x.bin"
        self.varve("get", 1, "w", "-o", out)
        self.assertEqual(out.read_bytes(), expected)

    def test_import_against_a_chosen_parent(self):
        for step in (1, 2):
            self.save(step)
        self.save(3, "--parent", 1)
        self.assertEqual(self.json("show", 3)["parent"], {"run": "main", "step": 1})
        source = self.folder / "in"
        done = self.varve("import", source, "--step", 4, "--parent", 9, expect=harness.NO_STEP)
        self.assertIn("step 9", done.stderr)
        self.varve(
            "import", source, "--run", "new", "--step", 4, "--parent", 1, expect=harness.NO_STEP
        )
        self.assertEqual(self.steps(), [("main", 1), ("main", 2), ("main", 3)])

    def test_steps_show_and_runs(self):
        self.save(
            1, "--metric", "loss=2.5", "--metric", "acc=nan", "--tag", "first", "--tag", "v1.0"
        )
        self.save(2, "--metric", "loss=inf")
        self.save(7, "--run", "exp")
        self.assertEqual(self.steps(), [("exp", 7), ("main", 1), ("main", 2)])
        self.assertEqual(self.steps("--run", "main"), [("main", 1), ("main", 2)])
        one, two = self.json("steps", "--run", "main")
        self.assertLessEqual(STEP_KEYS, set(one))
        self.assertEqual(one["metrics"], {"acc": "NaN", "loss": 2.5})
        self.assertEqual(two["metrics"], {"loss": "Infinity"})
        self.assertEqual(sorted(one["tags"]), ["first", "v1.0"])
        self.assertEqual((one["parent"], two["parent"]), (None, {"run": "main", "step": 1}))
        age = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(
            one["created"]
        )
        self.assertLess(abs(age.total_seconds()), 300)
        shown = self.json("show", 1)
        self.assertLessEqual(STEP_KEYS | {"trainer_state", "topology"}, set(shown))
        self.assertEqual(shown["metrics"], one["metrics"])
        runs = {run["run"]: run["steps"] for run in self.json("runs")}
        self.assertEqual(runs, {"exp": 1, "main": 2})
        self.assertRegex(
            self.varve("steps").stdout, r"\nexp@7 .*\n +1 .* acc=nan loss=2\.5 +first v1\.0\n"
        )
        self.assertRegex(self.varve("runs").stdout, r"\nmain +2\n")
        self.assertIn("metrics           acc=nan loss=2.5\n", self.varve("show", 1).stdout)

    def test_the_last_steps_and_the_best_first(self):
        for step, loss in ((1, "3"), (2, "nan"), (3, "1"), (4, None), (5, "1"), (6, "-inf")):
            self.save(step, *([] if loss is None else ["--metric", f"loss={loss}"]))
        for step in (7, 8):
            self.save(step, "--run", "exp", "--metric", f"acc={step}")
        main = ["--run", "main"]
        self.assertEqual(
            self.steps("--last", 2), [("exp", 7), ("exp", 8), ("main", 5), ("main", 6)]
        )
        self.assertEqual(self.steps("-n", 99, *main), self.steps(*main))

        def sorted_steps(*arguments):
            return [step for _, step in self.steps(*arguments)]

        self.assertEqual(sorted_steps("--sort", "loss", *main), [6, 5, 3, 1, 4, 2])
        self.assertEqual(sorted_steps("--sort", "loss:min", *main), [6, 5, 3, 1, 4, 2])
        self.assertEqual(sorted_steps("--sort", "loss:max", *main), [1, 5, 3, 6, 4, 2])
        self.assertEqual(sorted_steps("--sort", "loss", "--last", 4, *main), [6, 5, 3, 4])
        self.assertEqual(sorted_steps("--sort", "acc:max"), [8, 7, 6, 5, 4, 3, 2, 1])
        for way in ("loss", "loss:max"):
            first = sorted_steps("--sort", way, *main)[0]
            self.assertEqual(first, self.json("show", f"best:{way}")["step"])
        text = self.varve("steps", "--sort", "loss", *main).stdout
        self.assertRegex(text, r"^ *step .*\n +6 .*loss=-inf\n +5 .*\n")
        self.fails(harness.NO_STEP, "steps", "--sort", "lsos", says="lsos")
        self.fails(harness.NO_STEP, "steps", "--run", "gone", "--last", 1, says="gone")
        for wrong in (["--last", 0], ["--last", "x"], ["--sort", ":max"], ["--sort", "a@b"]):
            self.fails(harness.USAGE, "steps", *wrong, says=wrong[0])

    def test_steps_of_an_empty_store_may_be_sorted(self):
        self.varve("init")
        self.assertEqual(self.json("steps", "--sort", "loss", "--last", 3), [])

    def test_an_array_is_one_json_value_with_an_element_at_a_time(self):
        self.varve("init")
        self.assertEqual(self.varve("--json", "steps").stdout, "[]\n")
        self.save(1, "--tag", "a\\n", "--tag", "b")
        self.save(2)
        for words in (["steps"], ["ls", "1"], ["ls", "1", "x*"]):
            text = self.varve("--json", *words).stdout
            value = harness.json.loads(text)
            self.assertEqual(text, harness.json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def test_what_is_missing_of_many_steps_is_named(self):
        for step in (1, 2):
            self.save(step)
        done = self.varve("drop", 1, 7, 2, 8, "other@9", expect=harness.NO_STEP)
        for name in ("step 7", "step 8", "no run other"):
            self.assertIn(name, done.stderr)
        self.assertEqual(self.steps(), [("main", 1), ("main", 2)])

    def test_a_step_can_be_named_in_every_way(self):
        self.save(1, "--metric", "loss=2", "--tag", "first")
        self.save(2, "--metric", "loss=1")
        self.save(3, "--metric", "loss=1", "--tag", "mid")
        self.save(4, "--metric", "loss=nan")
        self.save(5, "--run", "exp", "--tag", "first")
        for text, expected in {
            "2": ("main", 2),
            "main@2": ("main", 2),
            "latest": ("main", 4),
            "best:loss": ("main", 3),
            "best:loss:max": ("main", 1),
            "first": ("main", 1),
            "exp@first": ("exp", 5),
            "exp@latest": ("exp", 5),
        }.items():
            shown = self.json("show", text)
            self.assertEqual((shown["run"], shown["step"]), expected, text)

    def test_a_tag_moves(self):
        self.save(1, "--tag", "best-so-far")
        self.save(2, "--tag", "best-so-far")
        self.assertEqual(self.json("show", "best-so-far")["step"], 2)
        self.assertEqual(self.json("show", 1)["tags"], [])

    def test_ls(self):
        tensors = {
            "a.w": files.random_tensor(self.rng, "BF16", [2, 3]),
            "a.b": files.random_tensor(self.rng, "F32", []),
            "c": files.random_tensor(self.rng, "U8", [0]),
        }
        source = files.write(self.folder / "in", tensors)
        self.varve("import", source, "--init", "--step", 1)
        self.assertEqual(
            self.json("ls", "latest"),
            [
                {"name": "a.b", "dtype": "F32", "shape": [], "shards": 1, "logical_bytes": 4},
                {"name": "a.w", "dtype": "BF16", "shape": [2, 3], "shards": 1, "logical_bytes": 12},
                {"name": "c", "dtype": "U8", "shape": [0], "shards": 1, "logical_bytes": 0},
            ],
        )
        self.assertEqual([t["name"] for t in self.json("ls", 1, "a*")], ["a.b", "a.w"])
        self.assertEqual(self.json("ls", 1, "x*"), [])
        self.assertRegex(
            self.varve("ls", 1, "a.w").stdout, r"a\.w +BF16 +\[2, 3\] +1 +12 B\n1 tensor, 12 B\n$"
        )
        text = self.varve("ls", 1).stdout
        self.assertTrue(text.endswith("\n3 tensors, 16 B\n"), text)
        self.assertEqual(self.varve("-q", "ls", 1).stdout, text[: text.index("3 tensors")])
        self.assertTrue(self.varve("ls", 1, "x*").stdout.endswith("\n0 tensors, 0 B\n"))

    def test_ls_shows_what_tensors_take_in_the_store(self):
        w = files.random_tensor(self.rng, "F32", [300_000])
        zeros = ("F32", [300_000], bytes(BYTES))
        self.save(1, tensors={"a": w, "tied": w, "zeros": zeros})
        self.save(2, tensors={"a": w, "b": files.random_tensor(self.rng, "U8", [5000])})

        def stored(step, *glob):
            return {t["name"]: t["stored_bytes"] for t in self.json("ls", step, *glob, "--stored")}

        whole = self.json("stats")["stored_bytes"]
        one = stored(1)
        self.assertEqual((one["tied"], one["zeros"]), (one["a"], 0))
        self.assertGreater(one["a"], BYTES)  # random bytes do not shrink
        two = stored(2)
        self.assertEqual(two["a"], one["a"])  # of a chunk that step 1 has saved
        self.assertEqual(two["a"] + two["b"], whole)
        self.assertEqual(stored(2, "b"), {"b": two["b"]})
        self.assertEqual(stored(2, "x*"), {})
        self.fails(harness.NO_STEP, "ls", 2, "--stored", "zeros", says="zeros")
        text = self.varve("ls", 1, "--stored").stdout
        self.assertRegex(text, r"^name .* bytes +stored\n(.*\n){3}3 tensors, 3\.4 MiB, stored in ")
        self.assertRegex(text, r"\nzeros .* 0 B\n")
        self.assertTrue(text.endswith("stored in 1.1 MiB\n"), text)  # once for both

    def test_ls_counts_a_rounded_copy_with_its_master(self):
        masters = [self.rng.uniform(-1, 1) for _ in range(5000)]
        raw = b"".join(struct.pack("<f", value) for value in masters)
        bf16 = []
        for at in range(0, len(raw), 4):
            bits = int.from_bytes(raw[at : at + 4], "little")
            bf16.append(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to_bytes(2, "little"))
        self.save(
            1,
            "--derive",
            "model.*=master.*",
            tensors={"master.w": ("F32", [5000], raw), "model.w": ("BF16", [5000], b"".join(bf16))},
        )
        stored = {t["name"]: t["stored_bytes"] for t in self.json("ls", 1, "--stored")}
        self.assertEqual(stored["model.w"], 0)
        self.assertEqual(stored["master.w"], self.json("stats")["stored_bytes"])

    def test_get_as_text(self):
        tensors = {"w": ("I32", [2, 2], b"".join(v.to_bytes(4, "little") for v in (1, 2, 3, 4)))}
        self.varve("import", files.write(self.folder / "in", tensors), "--init", "--step", 1)
        self.assertEqual(
            self.varve("get", 1, "w", "--slice", ":,1").stdout,
            "name    w\ndtype   I32\nshape   [2]\nbytes   8 B\n"
            "min     2\nmax     4\nmean    3\nvalues  2 4\n",
        )
        self.assertEqual(self.json("get", 1, "w", "--slice", "-1:")["values"], [3, 4])
        self.assertEqual(self.json("get", 1, "w", "--slice", "-1,-1")["shape"], [])

    def test_get_prints_as_many_values_as_asked(self):
        self.save(1, tensors={"w": ("U8", [3, 4], bytes(range(12))), "s": ("U8", [], b"\x05")})

        def values(name, *arguments):
            return self.varve("get", 1, name, *arguments).stdout.split("\nvalues")[1]

        self.assertEqual(values("w"), "  0 1 2 3 4 5 6 7 ...\n")
        self.assertEqual(values("w", "-n", 5), "\n0 1 2 3\n4 ...\n")
        self.assertEqual(values("w", "--values", 12), "\n0 1 2 3\n4 5 6 7\n8 9 10 11\n")
        self.assertEqual(values("w", "-n", 99, "--slice", "1:,2:"), "\n6 7\n10 11\n")
        self.assertEqual(values("w", "-n", 99, "--slice", "1:,2"), "\n6 10\n")
        self.assertEqual(values("s", "-n", 9), "\n5\n")
        self.assertEqual(self.json("get", 1, "w", "-n", 11)["values"], list(range(11)))
        self.assertEqual(len(self.json("get", 1, "w")["values"]), 8)
        for wrong in ("x", "-1", "1000001"):
            self.fails(harness.USAGE, "get", 1, "w", "--values", wrong, says="--values")
        self.fails(harness.USAGE, "get", 1, "w", "-n", 9, "-o", self.folder / "x.bin")

    def piped(self, *arguments, expect=0, **options):
        done = subprocess.run(
            [harness.program("varve"), "-s", self.store, "get", "1", "w", *arguments],
            stderr=subprocess.PIPE,
            **{"stdout": subprocess.PIPE} | options,
        )
        self.assertEqual(done.returncode, expect, done.stderr)
        return done

    def test_get_writes_to_standard_output(self):
        tensor = files.random_tensor(self.rng, "F32", [300, 1000])
        self.save(1, tensors={"w": tensor})
        self.assertEqual(self.piped("-o", "-").stdout, tensor[2])
        self.assertEqual(self.piped("-o", "-", "--slice", "1").stdout, tensor[2][4000:8000])
        for form in ("npy", "safetensors", "bin"):
            path = self.folder / f"x.{form}"
            self.piped("-o", path)
            done = self.piped("-o", "-", "--format", form)
            self.assertEqual((done.stdout, done.stderr), (path.read_bytes(), b""), form)
            self.piped("-o", self.folder / "unnamed", "--format", form, "--force")
            self.assertEqual((self.folder / "unnamed").read_bytes(), done.stdout)
        self.fails(harness.USAGE, "--json", "get", 1, "w", "-o", "-", says="--json")
        self.fails(harness.USAGE, "get", 1, "w", "--format", "npy", says="--format")
        self.fails(harness.USAGE, "get", 1, "w", "-o", "-", "--format", "zip")
        self.fails(harness.NO_STEP, "get", 1, "none", "-o", "-", says="none")
        self.assertFalse(os.path.exists("-"))

    def test_get_says_when_standard_output_did_not_take_all(self):
        self.save(1)
        with open("/dev/full", "wb") as full:
            done = self.piped("-o", "-", expect=harness.FAILED, stdout=full)
        self.assertEqual(done.stderr, b"varve: cannot write to standard output\n")

    def test_get_to_standard_output_says_that_it_is_damaged(self):
        tensor = files.random_tensor(self.rng, "U8", [100 << 20])
        self.save(1, tensors={"w": tensor})
        largest = max(self.store.rglob("*.sst"), key=lambda file: file.stat().st_size)
        kept = largest.read_bytes()
        damaged = bytearray(kept)
        damaged[len(kept) * 9 // 10] ^= 0xFF
        largest.write_bytes(damaged)
        done = self.piped("-o", "-", expect=harness.DAMAGED)
        self.assertLess(len(done.stdout), len(tensor[2]))
        self.assertTrue(tensor[2].startswith(done.stdout))
        self.assertIn(b"w", done.stderr)
        largest.write_bytes(kept)

    def test_drop_gives_space_back(self):
        for step in range(4):
            self.save(step)
        before = harness.disk_bytes(self.store)
        report = self.json("drop", 0, "main@1", "1")
        self.assertEqual(
            report["dropped"], [{"run": "main", "step": 0}, {"run": "main", "step": 1}]
        )
        self.assertGreater(report["freed_bytes"], 0)
        self.assertLess(report["disk_bytes_after"], report["disk_bytes_before"])
        self.assertLess(harness.disk_bytes(self.store), before - BYTES // 2)
        self.assertEqual(self.steps(), [("main", 2), ("main", 3)])
        self.varve("show", 1, expect=harness.NO_STEP)

    def test_drop_now_reclaim_later(self):
        for step in range(4):
            self.save(step)
        report = self.json("drop", "0", "1", "2", "--no-reclaim")
        self.assertEqual(len(report["dropped"]), 3)
        self.assertEqual(report["freed_bytes"], 0)
        self.assertGreater(report["pending_bytes"], 0)
        later = self.json("reclaim", "--all")
        self.assertEqual(later["dropped"], [])
        self.assertGreater(later["freed_bytes"], 0)
        self.assertEqual(later["pending_bytes"], 0)
        self.assertRegex(self.varve("reclaim").stdout, r"^0 B freed, 0 B pending, disk ")

    def test_drop_of_a_missing_step_drops_nothing(self):
        self.save(1)
        self.save(2)
        done = self.varve("drop", 1, 5, 6, expect=harness.NO_STEP)
        self.assertIn("5", done.stderr)
        self.assertIn("6", done.stderr)
        self.assertEqual(self.steps(), [("main", 1), ("main", 2)])

    def test_drop_takes_ranges(self):
        for step in (10, 20, 30, 40, 50):
            self.save(step, *(["--tag", "a..b"] if step == 50 else []))
        for step in (20, 30, 40):
            self.save(step, "--run", "exp", *(["--tag", "warm"] if step == 30 else []))

        def would_drop(*words):
            report = self.json("drop", "--dry-run", *words)
            return [(step["run"], step["step"]) for step in report["dropped"]]

        main, exp = [("main", step) for step in (10, 20, 30, 40, 50)], [("exp", 20), ("exp", 30)]
        self.assertEqual(would_drop("15..40"), main[1:4])
        self.assertEqual(would_drop("20..20"), main[1:2])
        self.assertEqual(would_drop("20.."), main[1:])
        self.assertEqual(would_drop("..20"), main[:2])
        self.assertEqual(would_drop("30..latest"), main[2:])
        self.assertEqual(would_drop("exp@..warm"), exp)
        self.assertEqual(would_drop("exp@20..exp@30"), exp)
        self.assertEqual(would_drop("--run", "exp", "20..warm"), exp)
        self.assertEqual(would_drop("--run", "exp", "exp@..30"), exp)
        self.assertEqual(would_drop("--run", "exp", 30, "warm"), exp[1:])
        self.assertEqual(would_drop("50", "10..20", "20..30"), [main[4], *main[:3]])
        self.assertEqual(would_drop("a..b"), main[4:])  # a tag
        for words, says in (
            (["40..10"], "step 40 comes after step 10"),
            ([".."], "range without ends"),
            (["exp@.."], "range without ends"),
            (["exp@20..main@30"], "main@30"),
            (["--run", "exp", "main@10..20"], "main"),
            (["--run", "exp", "main@10"], "main"),
            ([], "--run"),
        ):
            self.fails(harness.USAGE, "drop", *words, says=says)
        for words, says in (
            (["21..29"], "no step in 21..29"),
            (["10..20", "60.."], "60.."),
            (["10..gone"], "gone"),
            (["10..20", "7"], "step 7"),
            (["gone@1..2"], "gone"),
            (["--run", "gone"], "gone"),
        ):
            self.fails(harness.NO_STEP, "drop", *words, says=says)
        self.assertEqual(len(self.steps()), 8)
        self.assertEqual(len(self.json("drop", "20..40", "exp@..20")["dropped"]), 4)
        self.assertEqual(self.steps(), [("exp", 30), ("exp", 40), ("main", 10), ("main", 50)])

    def test_drop_of_a_whole_run(self):
        self.save(1)
        for step in (2, 3):
            self.save(step, "--run", "exp")
        self.varve("fork", "exp", "kept")
        self.assertRegex(self.varve("drop", "--run", "exp").stdout, "^2 steps dropped; ")
        self.assertEqual(self.steps(), [("kept", 3), ("main", 1)])
        self.json("drop", "--run", "kept")
        runs = {run["run"]: run["steps"] for run in self.json("runs")}
        self.assertEqual(runs, {"exp": 0, "main": 1})  # the fork is gone
        self.fails(harness.NO_STEP, "drop", "--run", "exp", says="exp")

    def test_dry_run_of_drop_says_what_drop_would_do(self):
        for step in range(1, 5):
            self.save(step, "--metric", f"loss={step}", *(["--tag", "t"] if step == 2 else []))
        self.json("reclaim", "--all")
        waits = self.json("drop", "1..3", "--dry-run", "--no-reclaim")
        text = self.varve("drop", "1..3", "--dry-run").stdout
        self.assertRegex(
            text,
            r"^step +saved +metrics +tags\n( +\d +[-0-9]+ [0-9:]+ [-+]\d{4} +loss=\d( +t)?\n){3}"
            r"would drop 3 steps\n[0-9.]+ \w+ \(\d+ bytes\) would come back at once\n",
        )
        report = self.json("drop", "1..3", "--dry-run")
        self.assertEqual((report["dry_run"], report["applied_by"]), (True, "nobody"))
        self.assertEqual(report["disk_bytes_before"], report["disk_bytes_after"])
        self.assertEqual(len(self.steps()), 4)
        done = self.json("drop", "1..3")
        self.assertFalse(done["dry_run"])
        for key in ("dropped", "freed_bytes", "pending_bytes"):
            self.assertEqual(done[key], report[key], key)
        self.assertEqual(waits["freed_bytes"], 0)
        self.assertEqual(waits["pending_bytes"], report["freed_bytes"] + report["pending_bytes"])

    def test_check(self):
        self.save(1)
        report = self.json("check")
        self.assertEqual((report["ok"], report["errors"], report["steps"]), (True, [], 1))
        self.assertEqual(report["bytes_read"], 0)
        self.assertGreater(self.json("check", "--read-data")["bytes_read"], 0)
        self.assertGreater(report["chunks"], 0)
        self.json("check", "--read-data-subset", "50%")
        self.assertRegex(
            self.varve("check").stdout, r"^checked 1 step, 1 tensor, \d+ chunks: no errors\n$"
        )

    def test_stats(self):
        self.save(1)
        self.save(2, seed=1)
        stats = self.json("stats")
        self.assertLessEqual(
            {
                "format_version",
                "runs",
                "steps",
                "chunks",
                "logical_bytes",
                "unique_bytes",
                "stored_bytes",
                "disk_bytes",
                "by_codec",
            },
            set(stats),
        )
        self.assertEqual((stats["runs"], stats["steps"]), (1, 2))
        self.assertEqual((stats["logical_bytes"], stats["unique_bytes"]), (2 * BYTES, BYTES))
        self.assert_adds_up(stats, "unique_bytes")
        self.assertEqual(stats["by_coder"]["raw"]["planes"], stats["by_codec"]["raw"]["chunks"])
        self.assertEqual(stats["by_coder"]["header"]["stored_bytes"], 32 * stats["chunks"])
        self.assertEqual(stats["disk_bytes"], harness.disk_bytes(self.store))
        text = self.varve("stats").stdout
        self.assertIn("logical  2.3 MiB\n", text)
        self.assertRegex(
            text,
            r"\n\ncodec +chunks +raw +stored\nraw +2 +1\.1 MiB +1\.1 MiB +100\.0 %\n"
            r"\ncoder +planes +raw +stored\nraw +2 +1\.1 MiB +1\.1 MiB +100\.0 %\n"
            r"header +0 +0 B +64 B +-\n$",
        )

    def test_version_and_help(self):
        self.save(1)
        self.assertRegex(self.varve("version").stdout, r"^varve \d+\.\d+\.\d+\n$")
        self.assertEqual(set(self.json("version")), {"version"})
        text = self.varve("help").stdout
        verbs = (
            "init import export runs steps ls show get diff log tag untag metric fork rewind drop "
            "forget reclaim copy backup check stats version completion help"
        )
        for verb in verbs.split():
            self.assertRegex(text, rf"\n  {verb} ")
            self.assertIn(f"Usage: varve {verb}", self.varve("help", verb).stdout)
            self.assertEqual(self.varve(verb, "--help").stdout, self.varve("help", verb).stdout)
        self.assertRegex(self.varve("help", "exit-codes").stdout, r"^ +0  done\n")

    def test_the_store_may_come_from_the_environment(self):
        self.save(1)
        done = subprocess.run(
            [harness.program("varve"), "steps", "--json"],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"VARVE_STORE": str(self.store)},
        )
        self.assertEqual(len(harness.json.loads(done.stdout)), 1)

    def test_global_options_may_follow_the_verb(self):
        self.save(1)
        done = subprocess.run(
            [harness.program("varve"), "ls", "1", "--json", "--store", str(self.store)],
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual(len(harness.json.loads(done.stdout)), 1)


if __name__ == "__main__":
    unittest.main()
