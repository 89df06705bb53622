# SPDX-License-Identifier: Apache-2.0
"""varve.torch.Checkpointer: exact resume, saves in the background, and what does not fit. Skipped where
torch is not installed."""

import gc
import json
import os
import random
import signal
import unittest

import numpy as np
import varve
from support import StoreTest, require

require("torch")
import torch  # noqa: E402
import varve.torch  # noqa: E402

VOCABULARY, WIDTH = 50, 24
torch.set_num_threads(1)  # the tensors are small


class Model(torch.nn.Module):
    """Has tied weights, a frozen one, buffers that a forward pass changes, and dropout."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.hidden = torch.nn.Linear(width, width)
        self.frozen = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.weight.requires_grad_(False)
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.calls = 0

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]

    def forward(self, tokens):
        self.calls += 1
        x = self.norm(self.embed(tokens))
        x = torch.nn.functional.dropout(torch.relu(self.hidden(x)), 0.1, self.training)
        return self.head(self.frozen(x))


class LoRA(torch.nn.Module):
    """A frozen layer and a trained difference of low rank."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = torch.nn.Parameter(torch.randn(rank, layer.in_features) / 10)
        self.up = torch.nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + torch.nn.functional.dropout(x, 0.1) @ self.down.T @ self.up.T


class Training:
    def __init__(self, seed, make_optimizer, *, autocast=False, scaler=False, lora=False):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = Model()
        if lora:
            self.model.requires_grad_(False)
            self.model.hidden = LoRA(self.model.hidden)
            self.model.frozen = LoRA(self.model.frozen)
        self.optimizer = make_optimizer([p for p in self.model.parameters() if p.requires_grad])
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 500)
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=7) if scaler else None
        )
        self.autocast = autocast

    def parts(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return {**parts, "scaler": self.scaler} if self.scaler else parts

    def step(self):
        # Data of all three generators.
        tokens = torch.randint(0, VOCABULARY, (16,))
        tokens[0] = random.randrange(VOCABULARY)
        tokens[1] = int(np.random.randint(VOCABULARY))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            logits = self.model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.float(), (tokens * 7) % VOCABULARY)
        self.optimizer.zero_grad()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.scheduler.step()
        return loss.item()


def adamw(**options):
    return lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, **options)


KINDS = {
    "AdamW for-loop": (adamw(foreach=False), {}),
    "AdamW foreach": (adamw(foreach=True, amsgrad=True), {}),
    "AdamW fused": (adamw(fused=True), {}),
    "AdamW groups": (
        lambda parameters: torch.optim.AdamW(
            [{"params": parameters[:2], "weight_decay": 0.0}, {"params": parameters[2:]}],
            lr=torch.tensor(3e-3),
            foreach=False,
        ),
        {},
    ),
    "SGD": (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), {}),
    "Adafactor": (lambda parameters: torch.optim.Adafactor(parameters, lr=1e-2), {}),
    "autocast": (adamw(), {"autocast": True}),
    "GradScaler": (adamw(), {"scaler": True}),
    "LoRA": (adamw(), {"lora": True}),
}
if not hasattr(torch.optim, "Adafactor"):  # before torch 2.5
    del KINDS["Adafactor"]


class ExactResumeTest(StoreTest):
    def test_a_resumed_training_has_the_losses_of_one_that_was_not_stopped(self):
        for name, (make_optimizer, options) in KINDS.items():
            with self.subTest(name):
                self.path = self.folder / name.replace(" ", "_")
                whole = Training(1, make_optimizer, **options)
                expected = [whole.step() for _ in range(125)]
                first = Training(1, make_optimizer, **options)
                with varve.torch.Checkpointer(self.path, save_every=20, keep_last=2) as ckpt:
                    self.assertIsNone(ckpt.restore(**first.parts()))
                    for step in range(25):
                        loss = first.step()
                        self.assertFalse(ckpt.after_step(step, metrics={"loss": loss}))
                second = Training(2, make_optimizer, **options)
                second.step()  # has state of its own
                with varve.torch.Checkpointer(self.path, save_every=20, keep_last=2) as ckpt:
                    start = ckpt.restore(**second.parts())
                    self.assertEqual(start, 20)
                    self.assertEqual(second.model.calls, 21)
                    found = []
                    for step in range(21, 121):
                        found.append(second.step())
                        ckpt.after_step(step)
                self.assertEqual(found, expected[21:121])
                self.assertIs(second.model.head.weight, second.model.embed.weight)
                with self.open("r") as store:
                    self.assertEqual([info.step for info in store.steps()], [100, 120])
                    step = store[120]
                    name = "hidden.layer" if options.get("lora") else "hidden"
                    self.assertEqual(step[f"model.{name}.weight"].role, "parameter")
                    self.assertEqual(step["model.norm.running_mean"].role, "buffer")
                    self.assertNotIn("model.scratch", step)

    def test_names_and_roles(self):
        training = Training(1, adamw())
        with varve.torch.Checkpointer(self.path) as ckpt:
            ckpt.restore(**training.parts())
            training.step()
            ckpt.after_step(1, metrics={"loss": 2.5}, tags="first")
            ckpt.wait()
            self.assertIsNone(ckpt.last_save.error)
            step = ckpt.store["first"]
            self.assertEqual(step["exp_avg.hidden.weight"].role, "optimizer")
            self.assertEqual(step["step.embed.weight"].role, "optimizer")
            self.assertNotIn("exp_avg.frozen.weight", step)
            self.assertEqual(step.metrics, {"loss": 2.5})
            self.assertEqual(step.state["global_step"], 1)
            self.assertEqual(
                [rng["generator"] for rng in step.state["rng"]], ["python", "numpy", "torch"]
            )
            self.assertTrue(
                torch.equal(step["model.head.weight"].torch(), training.model.head.weight)
            )

    def test_what_changes_between_saves_is_seen(self):
        """Names and memory of tensors are found once, and again when they are not as before."""
        training = Training(1, adamw())
        model, optimizer = training.model, training.optimizer
        with varve.torch.Checkpointer(self.path) as ckpt:
            ckpt.restore(model=model, optimizer=optimizer)

            def save(step):
                training.step()
                ckpt.after_step(step)
                ckpt.wait()
                return ckpt.store[step].load(framework="torch")

            def check(step):
                saved = save(step)
                for name, tensor in model.state_dict().items():
                    if "extra" not in name:
                        self.assertTrue(torch.equal(saved[f"model.{name}"], tensor), (step, name))
                for name, parameter in model.named_parameters():
                    state = optimizer.state.get(parameter, {})
                    for key, value in state.items():
                        self.assertTrue(torch.equal(saved[f"{key}.{name}"], value), (step, key))
                return saved

            first = check(1)
            self.assertEqual(set(check(2)), set(first))
            parameter = model.hidden.weight
            parameter.data = parameter.data.clone()  # other memory
            state = optimizer.state[parameter]
            state["exp_avg"] = state["exp_avg"].clone()
            check(3)
            state["exp_avg_sq"] = state["exp_avg_sq"].T.contiguous().T  # other strides
            check(4)
            # Tied moments, and a value that is no tensor.
            other = optimizer.state[model.frozen.bias]
            other["mine"] = optimizer.state[model.hidden.bias]["exp_avg"]
            other["note"] = 1
            saved = save(5)
            self.assertTrue(torch.equal(saved["mine.frozen.bias"], other["mine"]))
            notes = []
            for step, note in ((6, True), (7, 1.0), (8, 2)):
                other["note"] = note
                save(step)
                tree = json.loads(ckpt.store[step].read_bytes("torch.training"))
                notes.append(tree["optimizer"]["state"]["frozen.bias"]["note"])
                self.assertIn("memory", tree["optimizer"]["state"]["frozen.bias"]["mine"])
            self.assertEqual([repr(note) for note in notes], ["True", "1.0", "2"])
            del other["mine"], other["note"]
            model.norm.register_buffer("added", torch.arange(3.0))
            self.assertIn("model.norm.added", check(9))

    def test_going_back_moves_later_steps(self):
        training = Training(1, adamw())
        with varve.torch.Checkpointer(self.path) as ckpt:
            ckpt.restore(**training.parts())
            for step in range(4):
                training.step()
                ckpt.after_step(step)
            self.assertEqual(ckpt.restore(**training.parts(), step=1), 1)
            training.step()
            ckpt.after_step(2)
            ckpt.wait()
            self.assertEqual([info.step for info in ckpt.store.steps()], [0, 1, 2])
            self.assertEqual([run.name for run in ckpt.store.runs()], ["main", "main~1"])

    def test_state_of_16_bit_parameters_is_not_rounded(self):
        model = torch.nn.Linear(4, 4).to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        value = torch.randn(4, 4)
        optimizer.state[model.weight]["momentum_buffer"] = value.clone()
        with varve.torch.Checkpointer(self.path) as ckpt:
            ckpt.restore(model=model, optimizer=optimizer)
            ckpt.after_step(1)
            other = torch.optim.SGD(model.parameters(), momentum=0.9)
            ckpt.restore(model=model, optimizer=other)
        self.assertTrue(torch.equal(other.state[model.weight]["momentum_buffer"], value))


class TearingTest(StoreTest):
    def start(self, optimizer=True, **options):
        torch.manual_seed(3)
        model = torch.nn.Linear(300, 300)
        ckpt = varve.torch.Checkpointer(self.path, **options)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        ckpt.restore(model=model, **({"optimizer": sgd} if optimizer else {}))
        return model, sgd, ckpt

    def change(self, model):
        with torch.no_grad():
            model.weight.add_(1)

    def steps(self):
        with self.open("r") as store:
            return [info.step for info in store.steps()] if store.runs() else []

    def test_a_change_before_the_call_is_never_committed(self):
        for call in ("before_optimizer_step", "after_step", "wait", "close"):
            with self.subTest(call):
                self.path = self.folder / call
                model, _, ckpt = self.start()
                ckpt.after_step(1)
                self.change(model)
                with self.assertRaisesRegex(varve.FailedPreconditionError, "step 1.*model.weight"):
                    ckpt.after_step(2) if call == "after_step" else getattr(ckpt, call)()
                with self.assertRaises(varve.FailedPreconditionError):
                    ckpt.close()
                    raise varve.FailedPreconditionError  # closed already
                self.assertEqual(self.steps(), [])

    def test_a_call_that_is_missing_is_an_error(self):
        model, _, ckpt = self.start(optimizer=False)
        ckpt.after_step(1)
        model.weight.data.add_(1)  # torch does not count this
        with self.assertRaisesRegex(varve.FailedPreconditionError, "before_optimizer_step was not"):
            ckpt.after_step(2)
        with self.assertRaises(varve.FailedPreconditionError):
            ckpt.close()
        self.assertEqual(self.steps(), [])

    def test_the_hook_of_the_optimizer_keeps_saves_whole(self):
        model, sgd, ckpt = self.start()
        saved = []
        for step in range(20):
            ckpt.after_step(step)
            saved.append(model.weight.detach().clone())
            model(torch.ones(300)).sum().backward()
            sgd.step()
        ckpt.close()
        with self.open("r") as store:
            for step, value in enumerate(saved):
                self.assertTrue(torch.equal(store[step]["model.weight"].torch(), value), step)

    def test_a_skipped_optimizer_step_is_no_error(self):
        _, _, ckpt = self.start()
        ckpt.after_step(1)
        ckpt.after_step(2)
        ckpt.close()
        self.assertEqual(self.steps(), [1, 2])

    def test_buffers_may_change_at_once(self):
        model = torch.nn.BatchNorm1d(4)
        with varve.torch.Checkpointer(self.path) as ckpt:
            ckpt.restore(model=model)
            ckpt.after_step(1)
            model(torch.randn(8, 4))
        with self.open("r") as store:
            self.assertEqual(store[1]["model.num_batches_tracked"][()], 0)

    def test_one_that_is_forgotten_keeps_its_last_save(self):
        _, _, ckpt = self.start()
        ckpt.after_step(1)
        del ckpt, _
        gc.collect()
        self.assertEqual(self.steps(), [1])

    def test_a_handle_that_dies_commits_nothing_that_was_not_awaited(self):
        model, _, ckpt = self.start()
        ckpt.after_step(1)
        ckpt.before_optimizer_step()
        ckpt.after_step(2)
        ckpt._closed = True  # as if Python had ended without a call of __del__
        ckpt._detach()
        del ckpt, model, _
        gc.collect()
        self.assertEqual(self.steps(), [1])


class FaultsTest(StoreTest):
    def save(self, **options):
        training = Training(1, adamw(), **options)
        with varve.torch.Checkpointer(self.path) as ckpt:
            ckpt.restore(**training.parts())
            training.step()
            ckpt.after_step(1)
        return training

    def refused(self, pattern, **parts):
        before = {
            name: value.clone()
            for name, value in parts["model"].state_dict().items()
            if isinstance(value, torch.Tensor)
        }
        with varve.torch.Checkpointer(self.path) as ckpt:
            with self.assertRaisesRegex(varve.InvalidArgumentError, pattern):
                ckpt.restore(**parts)
        for name, value in before.items():
            self.assertTrue(torch.equal(parts["model"].state_dict()[name], value), name)

    def test_each_fault_is_named_and_nothing_changes(self):
        self.save()
        new = Training(2, adamw(), scaler=True)
        self.refused("no state of the scaler", **new.parts())
        self.refused("has state of the optimizer(.|\n)*of the scheduler", model=new.model)
        wider = Model()
        wider.more = torch.nn.Linear(2, 2)
        self.refused("lacks model.more.bias, model.more.weight", model=wider, partial=True)
        less = Model()
        del less.hidden
        self.refused("model lacks model.hidden.bias, model.hidden.weight", model=less, partial=True)
        self.refused("model.embed.weight", model=Model(WIDTH + 1), partial=True)
        sgd = torch.optim.SGD(new.model.parameters())
        self.refused("optimizer AdamW, and a SGD", model=new.model, optimizer=sgd, partial=True)
        two = torch.optim.AdamW([{"params": [p]} for p in list(new.model.parameters())[:2]])
        self.refused("1 groups .* 2", model=new.model, optimizer=two, partial=True)
        few = torch.optim.AdamW(list(new.model.parameters())[:2])
        self.refused("group 0 of the optimizer lacks", model=new.model, optimizer=few, partial=True)

    def test_partial_leaves_the_rest(self):
        saved = self.save()
        model = Model()
        with varve.torch.Checkpointer(self.path) as ckpt:
            self.assertEqual(ckpt.restore(model=model, partial=True), 1)
        self.assertTrue(torch.equal(model.hidden.weight, saved.model.hidden.weight))

    def test_parts_that_cannot_be_named(self):
        model = Model()
        with varve.torch.Checkpointer(self.path) as ckpt:
            stray = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))])
            for pattern, parts in {
                "parameter 0 of group 0": {"model": model, "optimizer": stray},
                "no torch.nn.Module": {"model": {}},
                "StatefulDataLoader": {"model": model, "loader": [1, 2]},
                "extra.ema": {"model": model, "extra": {"ema": 5}},
            }.items():
                with self.assertRaisesRegex(varve.InvalidArgumentError, pattern):
                    ckpt.restore(**parts)
            with self.assertRaisesRegex(varve.FailedPreconditionError, "restore"):
                ckpt.after_step(1)
            ckpt.restore(model=model)
            model.register_buffer("bad", torch.eye(3).to_sparse())
            with self.assertRaises(varve.InvalidArgumentError):
                ckpt.after_step(1)

    def test_a_step_of_another_kind(self):
        with self.open() as store:
            store.save(1, {"a": np.ones(3)})
        with varve.torch.Checkpointer(self.path) as ckpt:
            with self.assertRaisesRegex(varve.InvalidArgumentError, "not saved by a Checkpointer"):
                ckpt.restore(model=Model())
            with self.assertRaises(varve.NotFoundError):
                ckpt.restore(model=Model(), step=7)

    def test_options(self):
        for options in (
            {"save_every": 0},
            {"when_busy": "x"},
            {"compression": "x"},
            {"retries": -1},
        ):
            with self.assertRaises(varve.InvalidArgumentError):
                varve.torch.Checkpointer(self.path, **options)
        ckpt = varve.torch.Checkpointer(self.path)
        with self.assertRaises(varve.LockedError):
            varve.torch.Checkpointer(self.path)
        store = ckpt.store
        ckpt.close()
        ckpt.close()
        for call in (lambda: ckpt.restore(model=Model()), lambda: ckpt.after_step(1), store.runs):
            with self.assertRaises(varve.FailedPreconditionError):
                call()


class SignalTest(StoreTest):
    def test_a_signal_saves_and_stops(self):
        before = signal.getsignal(signal.SIGUSR1)
        training = Training(1, adamw())
        with varve.torch.Checkpointer(
            self.path, save_every=100, stop_signals=[signal.SIGUSR1]
        ) as ckpt:
            ckpt.restore(**training.parts())
            training.step()
            self.assertFalse(ckpt.after_step(7))
            os.kill(os.getpid(), signal.SIGUSR1)
            training.step()
            self.assertTrue(ckpt.after_step(8))
            self.assertEqual([info.step for info in ckpt.store.steps()], [8])
        self.assertEqual(signal.getsignal(signal.SIGUSR1), before)


if __name__ == "__main__":
    unittest.main()
