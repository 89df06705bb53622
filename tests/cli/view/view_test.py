# SPDX-License-Identifier: Apache-2.0
"""`varve view`: its answers are what the command says, for every kind of store."""

import math
import os
import signal
import struct
import subprocess
import unittest

import harness
import safetensors_bytes as files
import view_case
from verb_case import VerbCase
from view_case import ViewCase


class NumbersTest(ViewCase):
    """Each answer is compared with the command's."""

    def setUp(self):
        super().setUp()
        self.shown = self.enterContext(self.view())

    def test_runs_and_steps(self):
        ask = self.shown.ask
        self.assertEqual(ask("runs"), self.json("runs"))
        for lane, run in zip(ask("lineage"), self.json("runs"), strict=True):
            steps = self.json("steps", "--run", run["run"])
            ends = {name: lane.pop(name) for name in ("first", "last", "tags")}
            self.assertEqual(lane, run)
            self.assertEqual(ends["first"]["step"], steps[0]["step"])
            self.assertEqual(ends["last"], {key: steps[-1][key] for key in ("step", "created")})
            tags = [{"tag": tag, "step": step["step"]} for step in steps for tag in step["tags"]]
            self.assertEqual(ends["tags"], tags)
        all_steps = self.json("steps")
        self.assertEqual(ask("steps"), {"total": 6, "offset": 0, "rows": all_steps})
        self.assertEqual(ask("steps", order="down")["rows"], all_steps[::-1])
        newest = sorted(all_steps, key=lambda step: step["created"], reverse=True)
        self.assertEqual(ask("steps", order="newest")["rows"], newest)
        self.assertEqual(ask("steps", offset=4, limit=1)["rows"], all_steps[4:5])
        self.assertEqual(ask("steps", offset=99)["rows"], [])
        for arguments in (
            {"run": "fine"},
            {"sort": "loss"},
            {"sort": "accuracy:max", "run": "main"},
            {"last": 1},
        ):
            words = [word for name, value in arguments.items() for word in (f"--{name}", value)]
            self.assertEqual(ask("steps", **arguments)["rows"], self.json("steps", *words))

    def test_near(self):
        self.assertEqual(
            self.shown.ask("near", step=20),
            {"before": {"run": "main", "step": 10}, "after": {"run": "main", "step": 30}},
        )
        self.assertEqual(self.shown.ask("near", step="main@latest")["after"], None)
        self.assertEqual(self.shown.ask("near", step="fine@20")["before"], None)

    def test_curves_and_the_best(self):
        curves = self.shown.ask("curves")
        self.assertEqual((curves["metric"], curves["metrics"]), ("loss", ["loss", "accuracy"]))
        for curve in curves["runs"]:
            steps = self.json("steps", "--run", curve["run"])
            values = [(step["step"], step["metrics"]["loss"]) for step in steps]
            self.assertEqual([(p["first"], p["mean"]) for p in curve["points"]], values)
            best = self.json("show", f"{curve['run']}@best:loss")["step"]
            worst = self.json("show", f"{curve['run']}@best:loss:max")["step"]
            self.assertEqual((curve["lowest"], curve["highest"]), (best, worst))
        few = self.shown.ask("curves", metric="loss", points=2)["runs"][-1]
        self.assertEqual(few["steps_a_point"], 2)
        means = [point.pop("mean") for point in few["points"]]
        self.assertEqual(
            few["points"],
            [
                {"first": 10, "last": 20, "values": 2, "min": 2, "max": 4},
                {"first": 30, "last": 40, "values": 2, "min": 1, "max": 4 / 3},
            ],
        )
        self.assertEqual(means, [3, (1 + 4 / 3) / 2])

    def test_the_best_may_be_infinite(self):
        """The value is that of the step, though no curve can show it."""
        for step, value in ((10, 3), (20, "-inf"), (30, "inf"), (40, "nan")):
            self.varve("metric", step, f"odd={value}")
        (curve,) = self.shown.ask("curves", metric="odd")["runs"]
        for side, expression in (("lowest", "best:odd"), ("highest", "best:odd:max")):
            told = self.json("show", expression)
            self.assertEqual(curve[side], told["step"])
            self.assertEqual(curve[f"{side}_value"], told["metrics"]["odd"])
        self.assertEqual((curve["lowest"], curve["lowest_value"]), (20, "-Infinity"))
        self.assertEqual([point["first"] for point in curve["points"]], [10])

    def test_a_mean_of_huge_numbers_is_no_infinity(self):
        huge = 1.5e308
        for step in (10, 20):
            self.varve("metric", step, f"huge={huge!r}")
        (curve,) = self.shown.ask("curves", metric="huge", points=1)["runs"]
        (point,) = curve["points"]
        self.assertEqual((point["values"], point["mean"], point["max"]), (2, huge, huge))

    def test_space(self):
        self.assertEqual(self.shown.ask("stats"), self.json("stats"))
        space = self.shown.ask("space")
        steps = sorted(self.json("steps"), key=lambda step: step["created"])
        self.assertEqual((space["steps"], space["steps_a_bin"]), (len(steps), 1))
        for bin_, step in zip(space["bins"], steps, strict=True):
            for key in ("logical_bytes", "new_bytes", "stored_bytes"):
                self.assertEqual(bin_[key], step[key])
        groups = {group["name"]: group for group in self.shown.ask("sharing")["groups"]}
        self.assertEqual(groups["model.frozen.weight"]["new_bytes"], 0)
        self.assertGreater(groups["model.layers.0"]["new_bytes"], 0)

    def test_forget(self):
        told = self.json("forget", "--dry-run", "--keep-last", 1, "--keep-best", "loss:max:1")
        shown = self.shown.ask("forget", keep_last=1, keep_best="loss:max:1")
        decisions = told.pop("decisions")
        self.assertEqual(shown.pop("num_dropped"), len(told.pop("dropped")))
        self.assertEqual(
            shown.pop("decisions"), {"total": len(decisions), "offset": 0, "rows": decisions}
        )
        self.assertEqual(shown, told)
        self.assertEqual(len(self.json("steps")), 6)  # nothing was dropped
        self.assertIn("no policy", self.shown.ask("forget", expect=400)["error"])
        self.assertIn("--keep-last", self.shown.ask("forget", keep_last="x", expect=400)["error"])

    def test_show_and_shards(self):
        for step in ("latest", "main@10", "fine@20", "best:loss"):
            self.assertEqual(self.shown.ask("show", step=step), self.json("show", step))
        name = "model.embed.weight"
        told = self.json("show", "latest", name)
        shown = self.shown.ask("shards", step="latest", name=name)
        self.assertEqual(shown, {"total": 1, "offset": 0, "rows": told})

    def test_tensors(self):
        told = self.json("ls", "latest", "--stored")
        shown = self.shown.ask("tensors", step="latest")
        self.assertEqual(shown["errors"], [])
        self.assertEqual(shown["total"], len(told))
        self.assertEqual(shown["logical_bytes"], sum(row["logical_bytes"] for row in told))
        for row in shown["rows"]:
            logged = [change["step"] for change in self.json("log", row["name"])]
            self.assertEqual(row.pop("last_changed"), logged[-1], row["name"])
            self.assertRegex(row.pop("digest"), "^[0-9a-f]{32}$")
            self.assertEqual(row.pop("role"), "other")
        self.assertEqual(shown["rows"], told)
        for key, sort in (("stored_bytes", "stored"), ("logical_bytes", "bytes")):
            rows = self.shown.ask("tensors", step="latest", sort=sort, order="down")["rows"]
            sizes = [row[key] for row in rows]
            self.assertEqual(sizes, sorted(sizes, reverse=True))
        page = self.shown.ask("tensors", step="latest", glob="*.bias", offset=2, limit=3)
        names = [row["name"] for row in self.json("ls", "latest", "*.bias")]
        self.assertEqual([row["name"] for row in page["rows"]], names[2:5])
        self.assertEqual(page["total"], len(names))

    def test_last_change_of_every_step(self):
        """Also where a step has what the step before the last had, and after a fork."""
        rng = view_case.random.Random(3)
        one, other = view_case.matrix(rng, 8, 8), view_case.matrix(rng, 8, 8)
        for step, tensor in ((50, one), (60, other), (70, one), (80, one), (90, other)):
            path = files.write(self.folder / "in", {"w": tensor, "same": one})
            self.varve("import", path, "--step", step)
        path = files.write(self.folder / "in", {"w": one, "same": one})
        self.varve("import", path, "--step", 100, "--parent", 50)  # its bytes are those of step 70
        path = files.write(self.folder / "in", {"w": one, "same": one})
        self.varve("import", path, "--step", 110, "--parent", 60)  # equal to the step before it
        for name in ("w", "same"):
            changes = [change["step"] for change in self.json("log", name)]
            for step in (50, 60, 70, 80, 90, 100, 110):
                (row,) = self.shown.ask("tensors", step=step, glob=name)["rows"]
                expected = max(change for change in changes if change <= step)
                self.assertEqual(row["last_changed"], expected, (name, step, changes))

    def test_a_history_follows_the_store(self):
        rng = view_case.random.Random(4)

        def compare(run="main"):
            rows = self.shown.ask("log", name="w", order="down", run=run, limit=1000)["rows"]
            self.assertEqual(rows[::-1], self.json("log", "w", "--run", run))

        for step in (50, 60, 70):
            path = files.write(self.folder / "in", {"w": view_case.matrix(rng, 8, 8)})
            self.varve("import", path, "--step", step)
            compare()
        path = files.write(self.folder / "in", {"w": view_case.matrix(rng, 9, 9)})
        self.varve("import", path, "--step", 70, "--on-existing", "replace")
        compare()
        self.varve("fork", "main", "other", "--at", 60)
        compare("other")
        self.varve("drop", "main@60")
        compare()
        compare("other")

    def test_tree(self):
        tensors = self.json("ls", "latest")

        def below(prefix):
            found = [t for t in tensors if t["name"].startswith(prefix)]
            return len(found), sum(t["logical_bytes"] for t in found)

        tree = self.shown.ask("tree", step="latest")
        self.assertEqual(tree["prefix"], "model.")
        self.assertEqual((tree["tensors"], tree["bytes"]), below(""))
        for box in tree["boxes"]:
            self.assertEqual((box["tensors"], box["bytes"]), below(box["name"]))
        sizes = [box["bytes"] for box in tree["boxes"]]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        self.assertEqual({box["name"] for box in tree["boxes"]}, {t["name"] for t in tensors})
        leaves = self.shown.ask("tree", step="latest", prefix="model.layers.0.mlp.")["boxes"]
        self.assertEqual([box["is_tensor"] for box in leaves], [True, True])

    def test_tensor(self):
        name = "model.layers.0.mlp.bias"
        told = self.json("get", "latest", name, "--values", 5)
        shown = self.shown.ask("tensor", step="latest", name=name, values=5)
        self.assertEqual(shown["get"], told)
        self.assertEqual((told["nan"], shown["look"]["infinite"]), (1, 0))
        self.assertEqual(shown["look"]["zeros"], 31)
        self.assertEqual(sum(shown["look"]["histogram"]["counts"]), 31)
        self.assertEqual(shown["look"]["heat"]["cells"][:2], ["NaN", 0])
        name = "model.embed.weight"
        told = self.json("get", "latest", name, "--slice", "3:5,:", "--values", 64)
        shown = self.shown.ask("tensor", step="latest", name=name, slice="3:5,:", values=64)
        self.assertEqual(shown["get"], told)
        norm = math.sqrt(sum(value * value for value in told["values"]))
        self.assertAlmostEqual(shown["look"]["norm"], norm, places=9)
        self.assertEqual(shown["look"]["heat"]["cells"], told["values"])
        counts = shown["look"]["histogram"]["counts"]
        low, high = told["min"], told["max"]
        expected = [0] * len(counts)
        for value in told["values"]:
            expected[min(int((value - low) / (high - low) * len(counts)), len(counts) - 1)] += 1
        self.assertEqual((sum(counts), len(counts)), (64, 64))
        self.assertLessEqual(
            sum(abs(a - b) for a, b in zip(counts, expected, strict=False)), 2
        )  # rounding

    def test_log(self):
        name = "model.layers.1.mlp.weight"
        told = self.json("log", name)
        self.assertEqual(self.shown.ask("log", name=name)["rows"], told)
        self.assertEqual(self.shown.ask("log", name=name, order="down")["rows"], told[::-1])
        fine = self.json("log", "model.embed.weight", "--run", "fine")
        self.assertEqual(self.shown.ask("log", name="model.embed.weight", run="fine")["rows"], fine)

    def test_a_name_with_a_star_is_no_pattern(self):
        rng = view_case.random.Random(11)
        tensors = {name: view_case.matrix(rng, 4, 4) for name in ("w*", "wx", "wy")}
        changes = {50: [], 60: ["wx"], 70: ["w*"], 80: ["wy"]}
        for step, changed in changes.items():
            tensors |= {name: view_case.matrix(rng, 4, 4) for name in changed}
            path = files.write(self.folder / "in", tensors)
            self.varve("import", path, "--run", "star", "--step", step)
        for name, steps in (("w*", [50, 70]), ("wx", [50, 60]), ("wy", [50, 80])):
            logged = self.shown.ask("log", name=name, run="star")
            self.assertEqual([row["name"] for row in logged["rows"]], [name] * 2)
            self.assertEqual([row["step"] for row in logged["rows"]], steps)
        rows = self.shown.ask("tensors", step="star@80", limit=1)["rows"]
        self.assertEqual([(row["name"], row["last_changed"]) for row in rows], [("w*", 70)])
        told = self.json("ls", "star@80", "--stored")[0]
        self.assertEqual(rows[0]["stored_bytes"], told["stored_bytes"])
        shown = self.shown.ask("diff", before="star@60", after="star@70", name="w*", values=1)
        self.assertEqual([row["name"] for row in shown["rows"]], ["w*"])

    def test_diff(self):
        for before, after in (
            ("main@30", "main@40"),
            ("main@10", "fine@25"),
            ("main@20", "fine@20"),
        ):
            told = self.json("diff", before, after, "--values")
            shown = self.shown.ask("diff", before=before, after=after, values=1)
            self.assertEqual(shown["values_of"], "all")
            self.assertEqual(shown["rows"], told["changed"])
            self.assertEqual(shown["num_unchanged"], len(told["unchanged"]))
            self.assertEqual((shown["added"], shown["removed"]), (told["added"], told["removed"]))
            for name in ("model.embed.weight", "model.layers.0.mlp.bias"):
                told = self.json("diff", before, after, name, "--values")
                shown = self.shown.ask("diff", before=before, after=after, values=1, name=name)
                self.assertEqual(shown["rows"], told["changed"])
                self.assertEqual(shown["num_unchanged"], len(told["unchanged"]))
            plain = self.json("diff", before, after)
            shown = self.shown.ask("diff", before=before, after=after, sort="bytes", order="down")
            by_bytes = sorted(plain["changed"], key=lambda row: row["changed_bytes"], reverse=True)
            sizes = [row["changed_bytes"] for row in shown["rows"]]
            self.assertEqual(sizes, [row["changed_bytes"] for row in by_bytes])
            self.assertEqual(shown["changed_bytes"], sum(sizes))

    def test_layers_of_a_diff(self):
        shown = self.shown.ask("diff", before=30, after=40, values=1)
        layers = {layer["name"]: layer for layer in shown["layers"]}
        frozen = layers["model.frozen.weight"]
        self.assertEqual((frozen["changed_tensors"], frozen["changed_bytes"]), (0, 0))
        self.assertEqual(frozen["largest_norm"], None)
        self.assertEqual(layers["model.layers.0"]["new_nans"], 1)
        rows = [row for row in shown["rows"] if row["name"].startswith("model.layers.1.")]
        layer = layers["model.layers.1"]
        self.assertEqual(layer["changed_tensors"], len(rows))
        self.assertEqual(layer["changed_bytes"], sum(row["changed_bytes"] for row in rows))
        norms = [row["values"]["relative_norm"] for row in rows]
        self.assertEqual(layer["largest_norm"], max(norms))
        total = sum(layer["bytes"] for layer in layers.values())
        self.assertEqual(total, self.json("show", 40)["logical_bytes"])
        norm_rows = self.shown.ask("diff", before=30, after=40, values=1, sort="norm", order="down")
        norms = [float(row["values"]["relative_norm"]) for row in norm_rows["rows"]]
        self.assertEqual(norms, sorted(norms, reverse=True))

    def test_a_layer_that_gains_or_loses_tensors_is_not_frozen(self):
        """The bytes of added tensors count as new, as `varve stats --plot` counts them."""
        rng = view_case.random.Random(12)
        keys = ("changed_tensors", "added_tensors", "removed_tensors", "tensors")
        before = {
            name: view_case.matrix(rng, 4, 4) for name in ("l.0.w", "l.1.w", "l.1.v", "l.2.w")
        }
        after = {name: before[name] for name in ("l.0.w", "l.1.w")}
        after |= {name: view_case.matrix(rng, 4, 4) for name in ("l.0.a", "l.3.w", "l.3.v")}
        for step, tensors in ((50, before), (60, after)):
            self.varve("import", files.write(self.folder / "in", tensors), "--step", step)
        layers = self.shown.ask("diff", before=50, after=60, values=1)["layers"]
        self.assertEqual(
            {layer["name"]: tuple(layer[key] for key in keys) for layer in layers},
            {"l.0": (0, 1, 0, 2), "l.1": (0, 0, 1, 1), "l.2": (0, 0, 1, 0), "l.3": (0, 2, 0, 2)},
        )
        sizes = {layer["name"]: (layer["changed_bytes"], layer["bytes"]) for layer in layers}
        self.assertEqual(
            sizes, {"l.0": (64, 128), "l.1": (0, 64), "l.2": (0, 0), "l.3": (128, 128)}
        )

    def test_layers_end_behind_the_first_number(self):
        rng = view_case.random.Random(6)
        names = ["a.b.c.d.0.w", "a.b.c.d.0.v", "a.b.c.d.10.w", "a.b.c.d.e", "a.b.c", "7/w", "b"]
        for step in (50, 60):
            tensors = {name: view_case.matrix(rng, 2, 2) for name in names}
            self.varve("import", files.write(self.folder / "in", tensors), "--step", step)
        layers = self.shown.ask("diff", before=50, after=60)["layers"]
        self.assertEqual(
            {layer["name"]: (layer["glob"], layer["tensors"]) for layer in layers},
            {
                "a.b.c.d.0": ("a.b.c.d.0.*", 2),
                "a.b.c.d.10": ("a.b.c.d.10.*", 1),
                "a.b.c": ("a.b.c*", 2),
                "7": ("7/*", 1),
                "b": ("b", 1),
            },
        )
        for layer in layers:
            shown = self.shown.ask("diff", before=50, after=60, glob=layer["glob"])
            self.assertGreaterEqual(shown["total"], layer["tensors"])

    def test_health_and_check(self):
        self.assertEqual(self.shown.ask("check"), None)
        done = self.shown.ask("check", start=1)
        self.assertEqual(done["report"], self.json("check"))
        self.assertEqual(self.shown.ask("check"), done)
        self.assertEqual(
            self.shown.ask("health"),
            {"stats": self.json("stats"), "uncommitted": {"saves": 0, "files": 0, "bytes": 0}},
        )
        store = self.shown.ask("store")
        self.assertEqual((store["path"], store["kind"]), (str(self.store), "store"))

    def test_saves_that_are_not_committed_are_counted(self):
        left = ("birth-7-0.sst", "birth-7-1.sst", "birth-9-0.sst", "commit-3-1.sst")
        try:
            for name in left:
                (self.store / "incoming" / name).write_bytes(bytes(1000))
            shown = self.shown.ask("health")["uncommitted"]
            self.assertEqual(shown, {"saves": 2, "files": 4, "bytes": 4000})
        finally:
            for name in left:
                (self.store / "incoming" / name).unlink()
        incoming, away = self.store / "incoming", self.store / "away"
        incoming.rename(away)
        try:
            incoming.write_bytes(b"")
            shown = self.shown.ask("health")
            self.assertIn("incoming: Not a directory", shown["uncommitted"]["error"])
            self.assertEqual(shown["stats"]["files"], self.json("stats")["files"])
        finally:
            incoming.unlink()
            away.rename(incoming)

    def test_a_save_under_way_is_counted(self):
        size = 128 << 20
        path = files.write(self.folder / "in", {"w": ("U8", [size], os.urandom(size))})
        incoming = self.store / "incoming"
        written = []
        for step in range(100, 110):  # a busy machine may look too late
            command = [harness.program("varve"), "-s", self.store, "import", path, "--step", step]
            with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL) as importing:
                while importing.poll() is None and not list(incoming.glob("birth-*")):
                    pass
                if importing.returncode is not None:
                    continue
                importing.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, importing.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                written = list(incoming.iterdir())
                shown = self.shown.ask("health")["uncommitted"]
                importing.send_signal(signal.SIGCONT)
            if written:
                break
        self.assertEqual((shown["saves"], shown["files"]), (1, len(written)))
        shown = self.shown.ask("health")["uncommitted"]
        self.assertEqual(shown, {"saves": 0, "files": 0, "bytes": 0})

    def test_what_is_wrong_is_said(self):
        for status, what, parameters, says in (
            (404, "nothing", {}, 'nothing called "api/nothing"'),
            (404, "show", {"step": 11}, "11"),
            (404, "show", {"step": "none@1"}, "none"),
            (400, "show", {"step": "a b"}, "a b"),
            (400, "show", {}, '"step" is missing'),
            (400, "runs", {"run": "x"}, 'no parameter "run"'),
            (400, "show", {"step": ["1", "2"]}, '"step" is there twice'),
            (400, "steps", {"limit": 1001}, "limit"),
            (400, "steps", {"offset": -1}, "offset"),
            (400, "tensors", {"step": 10, "sort": "x"}, "expected one of: name bytes"),
            (404, "tensor", {"step": 10, "name": "x"}, "no tensor x"),
            (400, "tensor", {"step": 10, "name": "model.embed.weight", "slice": "9:x"}, "9:x"),
            (400, "curves", {"points": 0}, "points"),
            (404, "log", {"name": "x"}, "no tensor x"),
            (404, "diff", {"before": 10, "after": 20, "name": "x"}, '"x" is in neither'),
        ):
            error = self.shown.ask(what, expect=status, **parameters)
            self.assertIn(says, error["error"], what)


class LimitsTest(VerbCase):
    def test_a_large_tensor_is_looked_at_in_part(self):
        rng = view_case.random.Random(1)
        big = files.random_tensor(rng, "BF16", [3000, 3000])  # 18 MB
        self.save(1, tensors={"big": big, "w": files.random_tensor(rng, "F32", [100])})
        big = files.random_tensor(rng, "BF16", [3000, 3000])
        self.save(2, tensors={"big": big, "w": files.random_tensor(rng, "F32", [100])})
        with view_case.View(self.store) as view:
            whole = view.ask("tensor", step=1, name="big")
            self.assertNotIn("get", whole)
            self.assertEqual(whole["too_large"], 18_000_000)
            part = view.ask("tensor", step=1, name="big", slice=whole["first_slice"])
            told = self.json("get", 1, "big", "--slice", whole["first_slice"])
            self.assertEqual(part["get"], told)
            self.assertLessEqual(told["logical_bytes"], whole["max_bytes"])
            self.assertGreater(told["logical_bytes"], whole["max_bytes"] // 2)
            diff = view.ask("diff", before=1, after=2, values=1)
            self.assertEqual(diff["values_of"], "none")
            self.assertNotIn("values", diff["rows"][0])
            everything = view.ask("diff", before=1, after=2, values="all")
            self.assertEqual(everything["values_of"], "all")
            told = self.json("diff", 1, 2, "--values")
            self.assertEqual(everything["rows"], told["changed"])
            small = view.ask("diff", before=1, after=2, values=1, glob="w")
            self.assertEqual(small["rows"], self.json("diff", 1, 2, "w", "--values")["changed"])
            error = view.ask("diff", expect=400, before=1, after=2, values=1, sort="norm")["error"]
            self.assertIn("sort=norm", error)

    def test_many_rows_come_in_pages(self):
        rng = view_case.random.Random(2)
        tensors = {f"t{i:04}": files.random_tensor(rng, "F32", [2]) for i in range(1500)}
        self.save(1, tensors=tensors)
        with view_case.View(self.store) as view:
            rows = []
            while True:
                page = view.ask("tensors", step=1, offset=len(rows), limit=1000)
                rows += page["rows"]
                if len(rows) == page["total"]:
                    break
            self.assertEqual([row["name"] for row in rows], sorted(tensors))
            boxes = view.ask("tree", step=1)["boxes"]
            self.assertEqual((len(boxes), boxes[-1]["boxes"]), (1024, 1500 - 1023))
            self.assertEqual(sum(box["tensors"] for box in boxes), 1500)

    def test_the_lists_of_many_tensors(self):
        """They are read ahead, which finds the same as reading those of one tensor."""
        rng = view_case.random.Random(8)
        names = [f"t{i * 7919 % 3000:04}" for i in range(3000)]  # not in the order of names
        tensors = {name: files.random_tensor(rng, "F32", [2]) for name in names}
        self.save(1, tensors=tensors)
        changed = sorted(names[::2])
        for name in changed:
            tensors[name] = files.random_tensor(rng, "F32", [2])
        self.save(2, tensors=tensors)
        told = self.json("diff", 1, 2)
        self.assertEqual([row["name"] for row in told["changed"]], changed)
        self.assertEqual({row["changed_bytes"] for row in told["changed"]}, {8})
        self.assertEqual(told["unchanged"], sorted(names[1::2]))
        stored = {row["name"]: row for row in self.json("ls", 2, "--stored")}
        for name in sorted(names)[::300]:
            self.assertEqual([stored[name]], self.json("ls", 2, name, "--stored"))

    def test_values_of_one_page_alone(self):
        rng = view_case.random.Random(4)
        for step in (1, 2):
            tensors = {f"t{i}": files.random_tensor(rng, "F32", [1_000_000]) for i in range(3)}
            self.save(step, tensors=tensors)
        with view_case.View(self.store) as view:
            page = view.ask("diff", before=1, after=2, values=1, offset=1, limit=1)
            self.assertEqual((page["values_of"], page["total"]), ("rows", 3))
            self.assertEqual(page["rows"], self.json("diff", 1, 2, "t1", "--values")["changed"])
            self.assertNotIn("largest_norm", page["layers"][0])


class HugeNumbersTest(VerbCase):
    def test_integers_that_a_browser_cannot_hold_are_text(self):
        step = 2**64 - 1
        values = [2**53 - 1, 2**53, -(2**53), 2**63 - 1, -(2**63), 7]
        self.save(step, tensors={"i": ("I64", [6], struct.pack("<6q", *values))})
        with view_case.View(self.store) as view:
            self.assertEqual(view.ask("show", step="latest")["step"], str(step))
            self.assertEqual(view.ask("steps")["rows"][0]["step"], str(step))
            shown = view.ask("tensor", step=str(step), name="i")["get"]
            self.assertEqual(shown["values"], [values[0], *map(str, values[1:5]), 7])
            self.assertEqual((shown["min"], shown["max"]), (str(-(2**63)), str(2**63 - 1)))

    def test_sums_of_huge_numbers_are_no_infinity(self):
        values = [1.5e308, 1.5e308, 1e308]
        self.save(1, tensors={"d": ("F64", [3], struct.pack("<3d", *values))})
        with view_case.View(self.store) as view:
            shown = view.ask("tensor", step=1, name="d")
            self.assertAlmostEqual(shown["get"]["mean"] / 1e308, 4 / 3)
            self.assertEqual(shown["look"]["heat"]["cells"], values)
            self.assertEqual(shown["look"]["norm"], "Infinity")


class OtherStoresTest(VerbCase):
    def test_a_group(self):
        harness.run("group_worker", "save", self.store, 2, 6)
        with view_case.View(self.store) as view:
            self.assertEqual(view.ask("store")["kind"], "group")
            self.assertEqual(view.ask("show", step="latest"), self.json("show", "latest"))
            told = self.json("ls", "latest", "--stored")
            rows = view.ask("tensors", step="latest")["rows"]
            for row in rows:
                logged = [change["step"] for change in self.json("log", row["name"])]
                self.assertEqual(row.pop("last_changed"), logged[-1], row["name"])
                del row["role"], row["digest"]
            self.assertEqual(rows, told)
            name = next(tensor["name"] for tensor in told if tensor["shards"] == 2)
            shards = view.ask("shards", step="latest", name=name)["rows"]
            self.assertEqual(shards, self.json("show", "latest", name))
            ranks = view.ask("ranks", step="latest")
            self.assertEqual((ranks["has_ranks"], ranks["total"]), (True, 2))
            held = {0: 0, 1: 0}
            for tensor in told:
                for shard in self.json("show", "latest", tensor["name"]):
                    held[shard["rank"]] += shard["logical_bytes"]
            self.assertEqual({row["rank"]: row["bytes"] for row in ranks["rows"]}, held)
            group = view.ask("health")["group"]
            self.assertEqual((group["ranks"], group["members"]), (2, 2))
            unfinished = self.json("show", "latest")["unfinished"]
            self.assertEqual(group["open_saves"], unfinished)
            self.assertGreater(len(unfinished), 0)

    def test_a_remote_store(self):
        view_case.train(self.folder, self.store, steps=(10, 20))
        url = f"file://{self.folder / 'remote'}"
        self.varve("push", url)
        with view_case.View(url) as view:
            self.assertEqual(view.ask("store")["kind"], "remote")
            self.assertEqual(view.ask("steps")["rows"], harness.varve_json(url, "steps"))
            name = "model.embed.weight"
            told = harness.varve_json(url, "get", "latest", name)
            self.assertEqual(view.ask("tensor", step="latest", name=name)["get"], told)
            self.assertEqual([row["snapshot"] for row in view.ask("health")["snapshots"]], [1])
            self.save(99)
            self.varve("push", url)
            while view.ask("store")["snapshot"] != "2":
                pass  # it looks for new ones every two seconds
            self.assertEqual(view.ask("show", step=99), harness.varve_json(url, "show", 99))

    def test_an_object_store_that_is_down_leaves_what_is_open(self):
        view_case.train(self.folder, self.store, steps=(10, 20))
        place = self.folder / "remote"
        self.varve("push", f"file://{place}")
        with view_case.View(f"file://{place}") as view:
            steps = view.ask("steps")
            place.rename(self.folder / "away")
            place.write_text("no folder")
            while "warning" not in view.ask("store"):
                pass  # it looks for new ones every two seconds
            self.assertEqual(view.ask("store")["snapshot"], "1")
            self.assertEqual(view.ask("steps"), steps)
            self.assertIn("remote", view.ask("health")["warning"])
            place.unlink()
            (self.folder / "away").rename(place)
            while "warning" in view.ask("store"):
                pass
            self.assertEqual(len(view.ask("health")["snapshots"]), 1)

    def test_names_of_a_hostile_store(self):
        view_case.hostile_store(self.folder, self.store)
        with view_case.View(self.store) as view:
            run = "<b>run</b>"
            names = [row["name"] for row in view.ask("tensors", step=f"{run}@2")["rows"]]
            self.assertEqual(sorted(names), sorted(view_case.HOSTILE))
            for name in view_case.HOSTILE:
                told = self.json("get", f"{run}@2", name)
                self.assertEqual(view.ask("tensor", step=f"{run}@2", name=name)["get"], told)
            self.assertIn("__proto__", view.ask("curves")["metrics"])
            changed = view.ask(
                "diff", before=f"{run}@1", after=f"{run}@2", name=view_case.HOSTILE[0]
            )
            self.assertEqual([row["name"] for row in changed["rows"]], view_case.HOSTILE[:1])

    def test_an_empty_store(self):
        self.varve("init")
        with view_case.View(self.store) as view:
            self.assertEqual(view.ask("runs"), self.json("runs"))
            self.assertEqual(view.ask("steps")["rows"], [])
            self.assertEqual(view.ask("curves")["runs"], [])
            self.assertEqual(view.ask("space")["bins"], [])
            self.assertEqual(view.ask("stats"), self.json("stats"))


if __name__ == "__main__":
    unittest.main()
