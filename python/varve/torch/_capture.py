# SPDX-License-Identifier: Apache-2.0
"""The state of a training at a step, as a save takes it.

A training that saves each step waits for `Capture.take`. So what follows from names and memory of tensors is
found once, and used again while both are as they were.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import numpy as np
import torch

from .. import _arrays, _core
from .._errors import InvalidArgumentError
from . import _training, _trees

_Rng = list[tuple[int, str, bytes]]


class State(NamedTuple):
    """What a save takes. The first `num_lent` tensors may be read until the next optimizer step."""

    names: list[str]
    roles: list[str]
    values: list[Any]  # tensors and NumPy arrays
    num_lent: int
    text: bytes  # the JSON of all else


_Tensor = tuple[str, Any, str]  # name, tensor or array, role


class _Known(NamedTuple):
    """What was found out of the tensors that a training has besides those of its model."""

    names: list[str]
    of_optimizer: range
    layouts: bytes
    notes: dict[str, dict[str, _trees.Json]]  # what the JSON says of tensors besides their names
    are_lent: list[bool]


class Capture:
    """Takes the state of one training again and again. Thread rule: one thread at a time."""

    def __init__(self, training: _training.Training) -> None:
        self._training = training
        self._known: Optional[_Known] = None
        self._state_tree: _trees.Json = None  # of the optimizer
        self._state_text = b""
        self._rngs: dict[str, tuple[Any, bytes]] = {}  # the last state of each, and its text

    def take(self) -> State:
        """The state now. InvalidArgumentError names what cannot be saved."""
        training = self._training
        lent: list[_Tensor] = []
        copied: list[_Tensor] = []
        of_model = list(_training.model_tensors(training.model))
        for each in of_model:
            # A forward pass changes buffers, such as the means of a BatchNorm.
            (lent if each[2] == "parameter" else copied).append(each)
        encoder = _trees.Encoder()
        tree: dict[str, _trees.Json] = {"format": 1}
        extra = {
            name: encoder.encode(value, ("model", name))
            for name, value in _training.extra_states(training.model)
        }
        if extra:
            tree["model"] = extra
        first = encoder.num_tensors
        has_only_tensors = False
        if training.optimizer is not None:
            names = _training.names_of_groups(of_model, training.optimizer)
            tree["optimizer"], has_only_tensors = _training.encode_optimizer(
                training.optimizer, names, encoder
            )
        of_optimizer = range(first, encoder.num_tensors)
        for name, part in training.parts().items():
            tree[name] = encoder.encode(part.state_dict(), (name,))
        self._add_others(encoder, of_optimizer, lent, copied)
        both = lent + copied
        return State(
            [name for name, _, _ in both],
            [role for _, _, role in both],
            [value for _, value, _ in both],
            len(lent),
            self._dump(tree, has_only_tensors),
        )

    def rng(self) -> _Rng:
        """Python's, NumPy's and torch's generators, those of GPUs when they are in use."""
        version, numbers, gauss = random.getstate()
        python = (version, numbers, repr(gauss))
        states = [(0, "python", self._rng_text("python", python, _python_text))]
        name, keys, position, has_gauss, value = np.random.get_state()
        numpy = (str(name), np.asarray(keys).tobytes(), int(position), int(has_gauss), repr(value))
        states.append((0, "numpy", self._rng_text("numpy", numpy, _numpy_text)))
        states.append((0, "torch", torch.get_rng_state().numpy().tobytes()))
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            for i, on_gpu in enumerate(torch.cuda.get_rng_state_all()):
                states.append((0, f"cuda:{i}", on_gpu.numpy().tobytes()))
        return states

    def _rng_text(self, name: str, state: Any, make: Callable[[], bytes]) -> bytes:
        known = self._rngs.get(name)
        if known is None or known[0] != state:
            known = self._rngs[name] = (state, make())
        return known[1]

    def _add_others(
        self,
        encoder: _trees.Encoder,
        of_optimizer: range,
        lent: list[_Tensor],
        copied: list[_Tensor],
    ) -> None:
        """Adds the tensors that the model does not have."""
        names, values = encoder.found()
        of_model = {name for name, _, _ in lent}.union(name for name, _, _ in copied)
        if not of_model.isdisjoint(names):
            twice = next(name for name in names if name in of_model)
            raise InvalidArgumentError(f"two tensors of the training would be called {twice}")
        layouts = _core.layouts_of(values) if _arrays.learn_torch() else None
        known = self._known
        if (
            layouts is not None
            and known is not None
            and known[:3] == (names, of_optimizer, layouts)
        ):
            encoder.note(known.notes)
            are_lent = known.are_lent
        else:
            values = [value for _, value, _ in encoder.tensors()]
            steady = _training.steady_tensors(self._training.optimizer)
            are_lent = [
                isinstance(value, torch.Tensor) and value.data_ptr() in steady for value in values
            ]
            self._known = None
            if layouts is not None:
                self._known = _Known(names, of_optimizer, layouts, encoder.notes(), are_lent)
        for i, (name, value, is_lent) in enumerate(zip(names, values, are_lent, strict=True)):
            role = "optimizer" if is_lent or i in of_optimizer else "other"
            (lent if is_lent else copied).append((name, value, role))

    def _dump(self, tree: dict[str, _trees.Json], has_only_tensors: bool) -> bytes:
        """The JSON of the tree. The optimizer's state is most of it, and most often as it was."""
        if not has_only_tensors:
            return _trees.dumps(tree)
        optimizer = tree.pop("optimizer")
        state = optimizer.pop("state")
        if state != self._state_tree:
            self._state_tree, self._state_text = state, _trees.dumps(state)
        rest, of_optimizer = _trees.dumps(tree)[:-1], _trees.dumps(optimizer)[:-1]
        return b'%b,"optimizer":%b,"state":%b}}' % (rest, of_optimizer, self._state_text)


def _python_text() -> bytes:
    return json.dumps(random.getstate()).encode()


def _numpy_text() -> bytes:
    name, keys, position, has_gauss, value = np.random.get_state()
    numpy = [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(value)]
    return json.dumps(numpy).encode()
