# SPDX-License-Identifier: Apache-2.0
"""How long a training waits for a save in the background, and how much slower its next step is."""

import shutil

import torch

from . import states
from .clock import seconds, settle
from .order import order_of


class Trainer:
    """A model and its AdamW, whose tensors are those of a trained state. `advance` changes them in place."""

    def __init__(self, first, later):
        self._tensors = {name: each.clone() for name, each in states.fp32_part(first).items()}
        self._others = [states.fp32_part(later), states.fp32_part(first)]
        self.model = torch.nn.Module()
        parameters = {}
        for name, tensor in self._tensors.items():
            kind, _, plain = name.partition(".")
            if kind == "master":
                parameters[plain] = torch.nn.Parameter(tensor)
                self.model.register_parameter(plain.replace(".", "_"), parameters[plain])
        self.optimizer = torch.optim.AdamW(parameters.values())
        for plain, parameter in parameters.items():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(1.0),
                "exp_avg": self._tensors[f"exp_avg.{plain}"],
                "exp_avg_sq": self._tensors[f"exp_avg_sq.{plain}"],
            }

    def state(self):
        return self._tensors

    def advance(self):
        """One step of the training, or back."""
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(self._others[0][name])
        for parameter in self.model.parameters():
            parameter.grad = None
        self._others.reverse()


class Compute:
    """Products of matrices on all cores, for about so many seconds."""

    def __init__(self, wanted):
        self.matrix = torch.randn(1024, 1024)
        self.products = 1
        for _ in range(3):
            self.products = max(1, round(self.products * wanted / seconds(self)))

    def __call__(self):
        for _ in range(self.products):
            torch.mm(self.matrix, self.matrix)


class Stalls:
    def __init__(self, subjects, by_distance, folder, samples, seed, step_seconds):
        self.subjects = [each for each in subjects if each.is_async]
        self.trainer = Trainer(by_distance[0], by_distance[1])
        self.compute = Compute(step_seconds)
        self.folder = folder
        self.samples = samples
        self.seed = seed

    def run(self, number):
        """The step runs alone first, and in each odd round it runs with a save first."""
        for kind in order_of(self.subjects, self.seed, number):
            place = self.folder / "stall"
            subject = kind(place / "store")
            self.save(subject, 1)  # the first one makes what the later ones use again
            self.trainer.advance()
            if number % 2 == 0:
                alone = self.alone()
            settle()
            stall, computed = self.save(subject, 2)
            if number % 2 == 1:
                alone = self.alone()
            self.samples.note(kind.name, "stall", stall)
            self.samples.note(kind.name, "slowdown", computed / alone - 1)
            subject.close()
            shutil.rmtree(place)

    def alone(self):
        settle()
        return seconds(self.compute)

    def save(self, subject, step):
        stall = seconds(lambda: subject.begin(step, self.trainer))
        computed = seconds(self.compute)
        stall += seconds(subject.staged)
        subject.finish()
        return stall, computed
