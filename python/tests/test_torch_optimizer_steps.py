# SPDX-License-Identifier: Apache-2.0
"""A save that knows the step of the optimizer: which optimizers it knows, and that every step comes back
exactly. Skipped where torch is not installed."""

import unittest
from unittest import mock

from support import StoreTest, require

require("torch")
import torch  # noqa: E402
import varve.torch  # noqa: E402
from varve.torch._optimizer_steps import OptimizerSteps  # noqa: E402

WIDTH = 128
torch.set_num_threads(1)  # the tensors are small


class Training:
    def __init__(self, make_optimizer):
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)
        )
        self.optimizer = make_optimizer(self.model.parameters())

    def step(self):
        x = torch.randn(8, WIDTH)
        loss = (self.model(x) - x.flip(1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def tensors(self):
        """Copies of the parameters and of what the optimizer keeps of each."""
        copies = [parameter.detach().clone() for parameter in self.model.parameters()]
        for state in self.optimizer.state_dict()["state"].values():
            copies += [torch.as_tensor(value).clone() for value in state.values()]
        return copies


def adamw(**options):
    return lambda parameters: torch.optim.AdamW(
        parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, **options
    )


KNOWN = {
    "for loop": adamw(foreach=False),
    "foreach": adamw(foreach=True),
    "fused": adamw(fused=True),
    "the rate is a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3), foreach=False),
    "decay in the gradient": lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=0.01),
    "no decay": lambda p: torch.optim.Adam(p, lr=1e-3),
    "maximize": lambda p: torch.optim.AdamW(p, lr=-1e-3 + 2e-3, maximize=True),
}
UNKNOWN = {
    "amsgrad": adamw(amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "Adamax": lambda p: torch.optim.Adamax(p),
}


class OptimizerStepsTest(StoreTest):
    def run_steps(self, training, num_steps, *, steps_a_save=1, **options):
        """Saves a training. Returns what was held after each save, and how many bytes are replayed."""
        held = []
        with varve.torch.Checkpointer(self.path, **options) as ckpt:
            ckpt.restore(model=training.model, optimizer=training.optimizer)
            for step in range(num_steps):
                for _ in range(steps_a_save):
                    training.step()
                held.append(training.tensors())
                ckpt.after_step(step)
            ckpt.wait()
            uses = ckpt.store.stats().by_codec
            return held, sum(use.raw_bytes for use in uses if use.codec == "replay")

    def expect_held(self, make_optimizer, held):
        for step, expected in enumerate(held):
            training = Training(make_optimizer)
            with varve.torch.Checkpointer(self.path) as ckpt:
                ckpt.restore(model=training.model, optimizer=training.optimizer, step=step)
            found = training.tensors()
            self.assertEqual(len(found), len(expected))
            for one, other in zip(found, expected, strict=True):
                self.assertTrue(torch.equal(one, other))

    def test_steps_of_adam_are_replayed_and_come_back_exactly(self):
        for name, make_optimizer in KNOWN.items():
            with self.subTest(name):
                self.path = self.folder / name.replace(" ", "_")
                held, replayed = self.run_steps(Training(make_optimizer), 5)
                # The second moment and the weight of each matrix, and no less.
                self.assertGreaterEqual(replayed, 4 * 2 * 2 * 4 * WIDTH * WIDTH)
                self.expect_held(make_optimizer, held)

    def test_other_optimizers_are_saved_as_they_are(self):
        for name, make_optimizer in UNKNOWN.items():
            with self.subTest(name):
                self.path = self.folder / name
                held, replayed = self.run_steps(Training(make_optimizer), 3)
                self.assertEqual(replayed, 0)
                self.expect_held(make_optimizer, held)

    def test_two_steps_are_not_one(self):
        make_optimizer = KNOWN["foreach"]
        held, replayed = self.run_steps(Training(make_optimizer), 3, steps_a_save=2)
        self.assertEqual(replayed, 0)
        self.expect_held(make_optimizer, held)

    def test_the_step_after_a_restore_is_replayed(self):
        make_optimizer = KNOWN["foreach"]
        self.run_steps(Training(make_optimizer), 2)
        training = Training(make_optimizer)
        with varve.torch.Checkpointer(self.path) as ckpt:
            self.assertEqual(ckpt.restore(model=training.model, optimizer=training.optimizer), 1)
            training.step()
            ckpt.after_step(2)
            ckpt.wait()
            by_codec = {use.codec: use.raw_bytes for use in ckpt.store.stats().by_codec}
        self.assertGreaterEqual(by_codec["replay"], 2 * 2 * 2 * 4 * WIDTH * WIDTH)


class NotesTest(unittest.TestCase):
    """What is noted of a step, and what not."""

    def notes_of(self, make_optimizer):
        training = Training(make_optimizer)
        return training, OptimizerSteps(training.model, training.optimizer)

    def test_there_is_nothing_before_the_first_step_and_nothing_twice(self):
        training, notes = self.notes_of(KNOWN["foreach"])
        self.assertIsNone(notes.take())
        training.step()
        self.assertIsNotNone(notes.take())
        self.assertIsNone(notes.take())

    def test_after_a_state_was_loaded_the_number_is_that_of_the_state(self):
        training, notes = self.notes_of(KNOWN["foreach"])
        training.step()
        state = training.optimizer.state_dict()
        notes.take()
        training.optimizer.load_state_dict(state)
        self.assertIsNone(notes.take())
        training.step()
        self.assertIsNotNone(notes.take())

    def test_while_a_graph_is_captured_nothing_is_noted(self):
        training, notes = self.notes_of(KNOWN["for loop"])
        training.step()
        notes.take()
        with (
            mock.patch("torch.cuda.is_available", return_value=True),
            mock.patch("torch.cuda.is_current_stream_capturing", return_value=True),
        ):
            notes._note(training.optimizer)
        self.assertIsNone(notes.take())

    def test_closed_it_notes_nothing(self):
        training, notes = self.notes_of(KNOWN["foreach"])
        notes.close()
        training.step()
        self.assertIsNone(notes.take())


if __name__ == "__main__":
    unittest.main()
