# SPDX-License-Identifier: Apache-2.0
"""A round: each subject saves four steps, loads two, reads one tensor, and drops two steps."""

import shutil

import torch

from . import states
from .clock import seconds, settle
from .order import order_of

# The metric, and how many steps of the training after the first state.
SAVES = (("full", 0), ("same", 0), ("later", 1), ("ten", 10))


class Rounds:
    """Rounds on the states of one size, which it keeps in memory."""

    def __init__(self, subjects, by_distance, folder, samples, seed):
        self.subjects = subjects
        self.seed = seed
        self.states = by_distance
        self.folder = folder
        self.samples = samples
        self.out = {name: torch.zeros_like(each) for name, each in by_distance[0].items()}
        self.one = states.one_name(by_distance[0])

    def run(self, number):
        for subject in order_of(self.subjects, self.seed, number):
            place = self.folder / "round"
            measured = Measured(subject, place, self)
            measured.run()
            shutil.rmtree(place)


class Measured:
    """One subject in one round."""

    def __init__(self, kind, place, rounds):
        self.rounds = rounds
        self.kind = kind
        self.subject = kind(place / "store")

    def run(self):
        for step, (metric, distance) in enumerate(SAVES, start=1):
            self.save(metric, step, self.rounds.states[distance])
        self.load("load", 1, 0)
        self.load("load_ten", 4, 10)
        self.load_one()
        self.drop()
        self.subject.close()

    def note(self, metric, value):
        self.rounds.samples.note(self.kind.name, metric, value)

    def save(self, metric, step, state):
        native = self.subject.native(state)
        before = self.subject.bytes_on_disk()
        settle()
        call = seconds(lambda: self.subject.save(step, native))
        flush = 0 if self.kind.syncs else seconds(self.subject.flush)
        self.note(metric, call + flush)
        self.note(f"{metric}_call", call)
        self.note(f"{metric}_bytes", self.subject.bytes_on_disk() - before)

    def loaded(self, step):
        """What was loaded, over other contents than it has."""
        for tensor in self.rounds.out.values():
            tensor.zero_()
        self.subject.read_files()
        settle()
        found = []
        taken = seconds(lambda: found.append(self.subject.load(step, self.rounds.out)))
        return found[0], taken

    def load(self, metric, step, distance):
        found, taken = self.loaded(step)
        states.require_same(found, self.rounds.states[distance], f"{self.kind.name}, step {step}")
        self.note(metric, taken)

    def load_one(self):
        name = self.rounds.one
        out = torch.zeros_like(self.rounds.out[name])
        self.subject.read_files()
        settle()
        found = []
        self.note("one", seconds(lambda: found.append(self.subject.load_one(4, name, out))))
        expected = {name: self.rounds.states[10][name]}
        states.require_same({name: found[0]}, expected, f"{self.kind.name}, one tensor")

    def drop(self):
        """The last step goes, and the first one. What the others share with them stays."""
        for metric, step in (("drop_last", 4), ("drop_first", 1)):
            settle()
            self.note(metric, seconds(lambda step=step: self.subject.drop(step)))
        self.note("left_bytes", self.subject.bytes_on_disk())
        if self.kind.shares:
            found, _ = self.loaded(3)
            states.require_same(found, self.rounds.states[1], f"{self.kind.name}, after a drop")
