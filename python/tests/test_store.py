# SPDX-License-Identifier: Apache-2.0
"""Stores: saving, looking, changing, space, errors, and what notebooks show."""

import contextlib
import datetime
import io
import json
import math
import shutil
import unittest
import unittest.mock

import numpy as np
import varve
from support import StoreTest, has, require


def tree(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "model": {
            "wte": rng.standard_normal((40, 16)).astype(np.float32),
            "layers": [np.ones(3), np.zeros(3)],
        },
        "step": 7,
    }


class SealTest(StoreTest):
    def test_a_store_that_is_made_with_a_key_is_sealed(self):
        key = bytes(range(32))
        with varve.open(self.path, "w", key=key) as store:
            store.save(1, {"a": np.arange(1000)})
            report = store.check()
            self.assertTrue(report.ok and report.is_sealed)
            self.assertGreater(report.num_sealed_files, 0)
        with self.assertRaisesRegex(varve.FailedPreconditionError, "no key was given"):
            varve.open(self.path, "a")
        with varve.open(self.path) as store:
            self.assertEqual(store[1]["a"][3], 3)
            self.assertEqual(store.check().num_sealed_files, 0)
        with self.assertRaisesRegex(varve.InvalidArgumentError, "has 5 bytes, expected 16 to 1024"):
            varve.open(self.path, "a", key=b"short")
        with varve.open(
            self.path, "a", key=key
        ) as store:  # what ends each test opens without a key
            self.assertEqual(store.save(2, {"a": np.ones(3)}).num_tensors, 1)


class SaveTest(StoreTest):
    def test_a_block_commits(self):
        with self.open() as store:
            with store.save(100, metrics={"loss": 2.5}, tags="first") as step:
                step["a"] = np.arange(3)
                step.put("b", np.ones(2), role="optimizer")
                step.put_bytes("loader", b"\x00opaque")
                step.metrics["accuracy"] = 0.5
                step.tags.append("second")
                self.assertNotIn(100, store)
            self.assertEqual(step.report.num_tensors, 2)
            checkpoint = store[100]
            self.assertEqual((checkpoint.run, checkpoint.step), ("main", 100))
            self.assertEqual(checkpoint.metrics, {"loss": 2.5, "accuracy": 0.5})
            self.assertEqual(checkpoint.tags, ["first", "second"])
            self.assertEqual(checkpoint["b"].role, "optimizer")
            self.assertEqual(checkpoint.list_bytes(), ["loader"])
            self.assertEqual(checkpoint.read_bytes("loader"), b"\x00opaque")
            self.assertIsNone(checkpoint.state)

    def test_an_exception_abandons(self):
        with self.open() as store:
            with self.assertRaisesRegex(RuntimeError, "mine"):
                with store.save(1) as step:
                    step["a"] = np.ones(100_000)
                    raise RuntimeError("mine")
            with self.assertRaises(KeyboardInterrupt):
                with store.save(1) as step:
                    step["a"] = np.ones(100_000)
                    raise KeyboardInterrupt
            self.assertEqual(store.runs(), [])
            self.assertIsNone(step.report)
            with self.assertRaises(varve.FailedPreconditionError):
                step.commit()
            step.abandon()
            self.assertEqual(store.save(1, {"a": np.ones(3)}).num_tensors, 1)

    def test_an_error_at_commit_abandons(self):
        with self.open() as store:
            with self.assertRaises(varve.InvalidArgumentError):
                with store.save(1, tags="latest") as step:
                    step["a"] = np.ones(3)
            self.assertEqual(store.runs(), [])

    def test_a_tree(self):
        with self.open() as store:
            report = store.save(
                5, tree(), run="exp", metrics={"loss": math.inf}, state={"epoch": 3}
            )
            self.assertEqual((report.run, report.step, report.num_tensors), ("exp", 5, 4))
            checkpoint = store["exp@latest"]
            self.assertEqual(
                checkpoint.keys(), ["model.layers.0", "model.layers.1", "model.wte", "step"]
            )
            self.assertEqual(checkpoint["step"][()], 7)
            self.assertEqual(
                list(checkpoint.load(["model.l*", "step"])), checkpoint.keys()[:2] + ["step"]
            )
            self.assertEqual(checkpoint.state, {"epoch": 3})
            self.assertEqual(list(checkpoint), checkpoint.keys())
            self.assertEqual([t.name for t in checkpoint.values()], checkpoint.keys())
            self.assertEqual([name for name, _ in checkpoint.items()], checkpoint.keys())
            self.assertTrue("step" in checkpoint and "none" not in checkpoint)

    def test_trees_that_are_refused(self):
        with self.open() as store:
            for bad in (
                {"a": None},
                {"a": "text"},
                {(1, 2): np.ones(2)},
                np.ones(2),
                {"a.b": 1, "a": {"b": 2}},
            ):
                with self.assertRaises(varve.InvalidArgumentError):
                    store.save(1, bad)
            self.assertEqual(store.runs(), [])

    def test_what_did_not_change_is_stored_once(self):
        big = np.random.default_rng(1).standard_normal(300_000)
        with self.open() as store:
            first = store.save(1, {"a": big})
            self.assertEqual(store.save(2, {"a": big}).new_bytes, 0)
            self.assertEqual(first.new_bytes, big.nbytes)
            self.assertEqual(store[1]["a"].digest, store[2]["a"].digest)
            self.assertEqual(len(store[1]["a"].digest), 32)

    def test_a_rounded_copy_is_a_reference(self):
        import ml_dtypes

        master = np.random.default_rng(1).standard_normal(300_000).astype(np.float32)
        with self.open() as store:
            with store.save(1) as step:
                step.put("m", master.astype(ml_dtypes.bfloat16), derived_from="w", role="parameter")
                step.put("w", master, role="optimizer")
            self.assertEqual(store[1]["m"].derived_from, "w")
            self.assertEqual(step.report.new_bytes, master.nbytes)

    def test_on_existing(self):
        with self.open() as store:
            store.save(1, {"a": np.zeros(3)})
            with self.assertRaisesRegex(varve.AlreadyExistsError, "1"):
                store.save(1)
            store.save(1, {"a": np.ones(3)}, on_existing="replace")
            self.assertEqual(store[1]["a"][0], 1)
            with self.assertRaises(varve.InvalidArgumentError):
                store.save(2, on_existing="perhaps")

    def test_progress_as_a_bar(self):
        class Bar:
            def __init__(self, title):
                shown.append(title)

            def show(self, done, total):
                shown.append(done / total if total else 0)

            def close(self):
                shown.append("closed")

        shown = []
        data = np.random.default_rng(1).standard_normal(2_000_000)
        with self.open() as store, unittest.mock.patch("varve._progress._make_bar", Bar):
            store.save(1, {"a": data}, progress=True)
            self.assertEqual((shown[0], shown[-2:]), ("save main@1", [1, "closed"]))
            shown.clear()
            with self.assertRaises(RuntimeError):
                with store.save(2, progress=True) as step:
                    step["a"] = data
                    raise RuntimeError
            self.assertEqual(shown, ["save main@2", "closed"])
            shown.clear()
            with self.assertRaises(varve.AlreadyExistsError):
                store.save(1, {"a": data}, progress=True)
            self.assertEqual(shown, ["save main@1", "closed"])
            for call in (
                lambda: store.check(read_data=True, progress=True),
                lambda: store.copy_to(self.folder / "copy", progress=True),
                lambda: varve.backup(self.path, self.folder / "backup", progress=True),
            ):
                shown.clear()
                call()
                self.assertEqual((len(shown) > 2, shown[-1]), (True, "closed"))

    def test_the_kinds_of_bars(self):
        for kind, module in [("_TqdmBar", "tqdm"), ("_RichBar", "rich"), ("_TextBar", None)]:
            if module is not None and not has(module):
                continue
            with self.subTest(kind), contextlib.redirect_stderr(io.StringIO()) as text:
                bar = getattr(varve._progress, kind)("save")
                for done, total in [(0, 0), (1 << 20, 0), (1 << 20, 4 << 20), (4 << 20, 4 << 20)]:
                    bar.show(done, total)
                bar.close()
                if kind == "_TextBar":
                    self.assertIn(" 25 % of 4.0 MiB", text.getvalue())

    def test_progress(self):
        seen = []
        with self.open() as store:
            store.save(1, {"a": np.random.rand(2_000_000)}, progress=lambda *c: seen.append(c))
        self.assertTrue(all(0 <= done <= total for done, total in seen), seen)


class StateTest(StoreTest):
    def test_values_come_back_exactly(self):
        state = {
            "global_step": 12,
            "last_loss": 0.1 + 0.2,
            "best_metric": -math.inf,
            "lr_scheduler": {
                "last_lr": [0.1, 1e-300],
                "gamma": 0.9,
                "warm": True,
                "name": "cosine",
            },
            "rng": [{"rank": 0, "generator": "cpu", "state": bytes(range(256))}],
            "big": 2**80,
            "int": -(2**63),
            "float": 5e-324,
            "text": "json: \u00e9 \ud800",
            "json:": "json:",
            "none": None,
            "true": True,
            "empty": [],
            "nested": {"a": [1, 2.5, None, {"b": [[]]}]},
            "floats": [0.1, math.inf],
        }
        with self.open() as store:
            store.save(1, {"a": np.ones(1)}, state=state)
            found = store[1].state
            self.assertEqual(found, state)
            self.assertEqual(json.dumps(found["nested"]), json.dumps(state["nested"]))
            self.assertIs(type(found["true"]), bool)
            self.assertIs(type(found["lr_scheduler"]["last_lr"][0]), float)
            with store.save(2) as step:
                step.state = {"numpy": np.float32(0.1), "tuple": (1, 2)}
                self.assertEqual(step.state["tuple"], (1, 2))
            self.assertEqual(store[2].state, {"numpy": float(np.float32(0.1)), "tuple": [1, 2]})

    def test_values_that_are_refused(self):
        with self.open() as store:
            with store.save(1) as step:
                for bad in (
                    {"a": np.ones(2)},
                    {"a": {1: 2}},
                    {1: 2},
                    {"a": b"bytes"},
                    {"epoch": "three"},
                    {"global_step": 2**63},
                    {"lr_scheduler": 3},
                    {"rng": [{"rank": 0}]},
                    {"a": {"b": [object()]}},
                ):
                    with self.assertRaises(varve.InvalidArgumentError, msg=str(bad)):
                        step.state = bad


class LookTest(StoreTest):
    def setUp(self):
        super().setUp()
        self.store = self.open()
        for step, loss in [(100, 3.0), (200, 1.0), (300, 2.0)]:
            self.store.save(
                step, {"a": np.full(4, step), "same": np.ones(4)}, metrics={"loss": loss}
            )
        self.store.tag(200, "good")

    def test_step_expressions(self):
        store = self.store
        for expression, step in [
            (100, 100),
            (np.int64(100), 100),
            ("100", 100),
            ("main@100", 100),
            ("latest", 300),
            ("best:loss", 200),
            ("best:loss:max", 100),
            ("good", 200),
            (store.steps()[0], 100),
        ]:
            self.assertEqual(store[expression].step, step, expression)
            self.assertIn(expression, store)
        for missing in (101, "none", "exp@latest", "best:none"):
            self.assertNotIn(missing, store)
        for bad in ("", "a@b@c", 1.5, None):
            with self.assertRaises((varve.InvalidArgumentError, varve.NotFoundError)):
                store[bad]

    def test_steps_runs_log_diff(self):
        store = self.store
        self.assertEqual([info.step for info in store.steps()], [100, 200, 300])
        info = store.steps()[1]
        self.assertEqual(
            (info.tags, info.metrics, info.parent.step), (["good"], {"loss": 1.0}, 100)
        )
        age = datetime.datetime.now(datetime.timezone.utc) - info.created
        self.assertLess(abs(age), datetime.timedelta(hours=1))
        self.assertEqual([(run.name, run.num_steps) for run in store.runs()], [("main", 3)])
        self.assertEqual([change.step for change in store.log("a")], [100, 200, 300])
        self.assertEqual([change.step for change in store.log("same")], [100])
        diff = store.diff(100, "latest", values=True)
        self.assertEqual((diff.unchanged, [t.name for t in diff.changed]), (["same"], ["a"]))
        self.assertEqual(diff.changed[0].values.max_abs, 200)

    def test_steps_as_a_frame(self):
        require("pandas")
        frame = self.store.steps().to_pandas()
        self.assertEqual(frame["step"].tolist(), [100, 200, 300])
        self.assertEqual(frame["loss"].tolist(), [3.0, 1.0, 2.0])

    def test_annotate_fork_rewind(self):
        store = self.store
        store.set_metrics("best:loss", {"accuracy": 0.25})
        self.assertEqual(store[200].metrics, {"loss": 1.0, "accuracy": 0.25})
        store.untag("good")
        self.assertNotIn("good", store)
        with self.assertRaises(varve.NotFoundError):
            store.untag("good")
        self.assertEqual(store.fork("main", "exp", at=200), 200)
        self.assertEqual(store["exp@latest"].step, 200)
        report = store.rewind("main", 100)
        self.assertEqual((report.fork, report.moved), ("main~1", [200, 300]))
        self.assertEqual(store["latest"].step, 100)

    def test_forget_drop_reclaim(self):
        store = self.store
        plan = store.forget(keep_last=1, keep_best="loss:1", dry_run=True)
        self.assertEqual((plan.kept, plan.dropped, plan.drop), ([200, 300], [100], None))
        self.assertIn("best loss", str(plan.decisions[1].reasons))
        self.assertEqual(len(store.steps()), 3)
        report = store.forget(keep_last=1, keep_best="loss:1")
        self.assertEqual([i.step for i in report.drop.dropped], [100])
        self.assertIsNone(store.forget(keep_tags="*", keep_last=5).drop)
        within = store.forget(keep_within=datetime.timedelta(days=1), dry_run=True)
        self.assertEqual(within.dropped, [])
        self.assertEqual(store.forget(keep_best=["loss:max:1"], dry_run=True).kept, [300])
        with self.assertRaises(varve.InvalidArgumentError):
            store.forget()
        with self.assertRaises(varve.NotFoundError):
            store.drop([200, 999])
        self.assertEqual(len(store.steps()), 2)
        store.drop("best:loss", reclaim=False)
        store.drop([300])
        self.assertGreaterEqual(store.reclaim(all=True).disk_bytes_after, 0)
        self.assertEqual(store.stats().num_steps, 0)

    def test_copy_and_backup(self):
        store = self.store
        store.fork("main", "exp", at=100)
        reports = store.copy_to(self.folder / "all")
        self.assertEqual(len(reports), 4)
        with varve.open(self.folder / "one", "w") as one:
            store.copy_to(one, ["best:loss"], run="picked")
            self.assertEqual(one["picked@latest"]["a"][0], 200)
            with self.assertRaises(varve.AlreadyExistsError):
                store.copy_to(one, 200, run="picked")
        self.assertEqual(varve.backup(self.path, self.folder / "backup").num_steps, 4)
        with varve.open(self.folder / "backup") as copy:
            self.assertEqual(copy.steps()[1].metrics, {"loss": 1.0})

    def test_what_notebooks_show(self):
        store = self.store
        self.assertIn("main (3 steps)", repr(store))
        self.assertIn("main@200: 2 tensors", repr(store[200]))
        self.assertIn("'a': I64 [4], 32 B", repr(store[200]["a"]))
        for shown, text in [
            (store, "loss=2"),
            (store.steps(), "good"),
            (store.runs(), "main"),
            (store[200], "loss=1"),
            (store[200]["a"], "I64"),
        ]:
            self.assertIn("<table>", shown._repr_html_())
            self.assertIn(text, shown._repr_html_())
        store.fork("main", "exp")
        store.tag("exp@300", "t")
        self.assertEqual(
            store._ipython_key_completions_(), ["latest", "exp@300", "exp@t", 100, 200, 300, "good"]
        )
        self.assertEqual(store[100]._ipython_key_completions_(), ["a", "same"])
        self.assertIn("&lt;b&gt;", varve._display.html_table("<b>", (), ()))


class ErrorTest(StoreTest):
    def test_each_class(self):
        with self.assertRaises(varve.NotFoundError):
            varve.open(self.path)
        with self.assertRaises(varve.InvalidArgumentError):
            varve.open(self.path, "x")
        with self.assertRaises(varve.InvalidArgumentError):
            varve.open(self.path, "a", compression="best")
        with self.assertRaises(varve.InvalidArgumentError):
            varve.open(self.path, "a", entropy="huffman")
        store = self.open("w")
        with self.assertRaises(varve.LockedError):
            varve.open(self.path, "a")
        with self.assertRaises(varve.AlreadyExistsError) as caught:
            varve.open(self.path, "w")
        self.assertIsInstance(caught.exception, FileExistsError)
        with self.assertRaises(varve.NotFoundError) as caught:
            store[5]
        self.assertIsInstance(caught.exception, KeyError)
        self.assertEqual(str(caught.exception), caught.exception.args[0])
        self.assertEqual(caught.exception.code, "not found")
        with self.assertRaises(varve.InvalidArgumentError) as caught:
            with store.save(1) as step:
                step.put("a", np.ones(2), role="model")
        self.assertIsInstance(caught.exception, ValueError)
        with varve.open(self.path) as reader:
            with self.assertRaises(varve.FailedPreconditionError):
                reader.save(1)
        with self.assertRaises(varve.IOError) as caught:
            varve.open("/proc/nothing/here", "w")
        self.assertIsInstance(caught.exception, OSError)
        for kind in varve._errors.BY_CODE.values():
            self.assertTrue(issubclass(kind, varve.Error))

    def test_corruption(self):
        data = np.random.default_rng(3).standard_normal(200_000)
        with self.open() as store:
            store.save(1, {"a": data})
        broken = self.folder / "broken"
        varve.backup(self.path, broken)
        for path in broken.rglob("*.sst"):
            content = bytearray(path.read_bytes())
            if len(content) > 100_000:
                content[len(content) // 2] ^= 1
                path.write_bytes(content)
        with varve.open(broken) as store:
            with self.assertRaisesRegex(varve.CorruptionError, "a"):
                store[1]["a"][...]
            self.assertFalse(store.check(read_data=True).ok)
        shutil.rmtree(broken)

    def test_closed(self):
        store = self.open()
        store.save(1, {"a": np.ones(3)})
        checkpoint, tensor, step = store[1], store[1]["a"], store.save(2)
        step["a"] = np.ones(3)
        self.assertFalse(store.closed)
        store.close()
        store.close()
        self.assertTrue(store.closed)
        self.assertIn("closed", repr(store))
        self.assertIn("closed", store._repr_html_())
        for call in (store.runs, lambda: checkpoint.read("a"), lambda: tensor[0], step.commit):
            with self.assertRaisesRegex(varve.FailedPreconditionError, "closed|over"):
                call()
        step.abandon()
        with self.open() as store:
            self.assertNotIn(2, store)


if __name__ == "__main__":
    unittest.main()
