# SPDX-License-Identifier: Apache-2.0
"""The parts of a training in one process, and their state by name.

A parameter or buffer of the model is "model.NAME". State of the optimizer is "exp_avg.NAME", after its key
and its parameter. All other values go into one item of JSON (see _trees).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import torch

from .. import _core
from .._errors import CorruptionError, InvalidArgumentError
from . import _trees

ITEM = "torch.training"
_PARTS = ("scheduler", "scaler", "loader")
_SHOWN = 20  # names in a message


@dataclass
class Training:
    """What is saved and restored together. `extra` has other objects with state_dict, by name."""

    model: Any
    optimizer: Optional[Any] = None
    scheduler: Optional[Any] = None
    scaler: Optional[Any] = None
    loader: Optional[Any] = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.model, torch.nn.Module):
            raise InvalidArgumentError(
                f"model is a {type(self.model).__name__}, no torch.nn.Module"
            )
        if self.optimizer is not None:
            parameter_names(self.model, self.optimizer)
        for name, part in self.parts().items():
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                hint = ""
                if name == "loader":
                    hint = ": use torchdata's StatefulDataLoader, or leave the loader out"
                raise InvalidArgumentError(
                    f"{name} is a {type(part).__name__}, which has no state_dict and load_state_dict{hint}"
                )

    def parts(self) -> dict[str, Any]:
        """All but model and optimizer, by name."""
        given = {name: getattr(self, name) for name in _PARTS if getattr(self, name) is not None}
        for name, part in self.extra.items():
            given[f"extra.{name}"] = part
        return given


def model_tensors(model: Any) -> Iterator[tuple[str, Any, str]]:
    """Name, tensor and role of each parameter and persistent buffer, tied ones under all their names."""
    for prefix, module in unwrapped(model).named_modules(remove_duplicate=False):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield f"model.{_clean(prefix, name)}", parameter, "parameter"
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"model.{_clean(prefix, name)}", buffer, "buffer"


def unwrapped(model: Any) -> Any:
    """The model inside of DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(
            model, (torch.nn.parallel.DistributedDataParallel, torch.nn.parallel.DataParallel)
        ):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def _clean(prefix: str, name: str) -> str:
    parts = [part for part in prefix.split(".") if part and part != "_orig_mod"]
    return ".".join([*parts, name])


def extra_states(model: Any) -> Iterator[tuple[str, Any]]:
    for prefix, module in unwrapped(model).named_modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            yield prefix, module.get_extra_state()


def parameter_names(model: Any, optimizer: Any) -> list[list[str]]:
    """The names of the parameters of each group. InvalidArgumentError: one is not in the model."""
    return names_of_groups(model_tensors(model), optimizer)


def names_of_groups(of_model: Iterable[tuple[str, Any, str]], optimizer: Any) -> list[list[str]]:
    """The same with what model_tensors gives."""
    names: dict[int, str] = {}
    for name, tensor, role in of_model:
        if role == "parameter":
            names.setdefault(id(tensor), name.removeprefix("model."))
    groups = []
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            if id(parameter) not in names:
                raise InvalidArgumentError(
                    f"parameter {i} of group {g} of the optimizer, of shape {list(parameter.shape)}, is "
                    "no parameter of the model: the state of an optimizer is saved by their names"
                )
        groups.append([names[id(parameter)] for parameter in group["params"]])
    return groups


def steady_tensors(optimizer: Optional[Any]) -> set[int]:
    """Where the tensors lie that only an optimizer step changes."""
    found = set()
    for state in optimizer.state.values() if optimizer is not None else ():
        for value in state.values() if isinstance(state, dict) else ():
            # A number on the CPU is as well copied.
            if isinstance(value, torch.Tensor) and value.numel() > (0 if value.is_cuda else 1):
                if value.is_cpu or value.is_cuda:
                    found.add(value.data_ptr())
    return found


def encode_optimizer(
    optimizer: Any, names: list[list[str]], encoder: _trees.Encoder
) -> tuple[dict[str, _trees.Json], bool]:
    """The optimizer's part of the tree, and whether all state of its parameters is tensors.

    `names` are those of parameter_names.
    """
    groups: list[_trees.Json] = []
    states: dict[str, _trees.Json] = {}
    known: set[int] = set()
    has_only_tensors = True
    for g, (group, of_group) in enumerate(zip(optimizer.param_groups, names, strict=True)):
        options = {key: value for key, value in group.items() if key != "params"}
        groups.append(
            {
                "params": of_group,
                "options": encoder.encode(options, ("optimizer", "groups", str(g))),
            }
        )
        for name, parameter in zip(of_group, group["params"], strict=True):
            known.add(id(parameter))
            state = optimizer.state.get(parameter)
            if state:
                states[name] = {
                    key: encoder.encode(value, (str(key), name)) for key, value in state.items()
                }
                for value in state.values():
                    has_only_tensors = has_only_tensors and type(value) is torch.Tensor
    for key in optimizer.state:
        if id(key) not in known:
            raise InvalidArgumentError(
                f"the optimizer has state under {type(key).__name__} {key!r:.80}, which is none of its "
                "parameters"
            )
    tree = {"type": type(optimizer).__name__, "groups": groups, "state": states}
    return tree, has_only_tensors


# Restoring


def find_faults(training: Training, tree: dict[str, _trees.Json], partial: bool) -> list[str]:
    """What does not fit, but for tensors: parts that only one side has, and other parameters."""
    faults = []
    saved = {name for name in tree if name not in ("format", "model")}
    given = set(training.parts()) | ({"optimizer"} if training.optimizer is not None else set())
    for name in sorted(given - saved):
        faults.append(f"the checkpoint has no state of the {name}")
    for name in sorted(saved - given) if not partial else ():
        faults.append(f"the checkpoint has state of the {name}, and none was given")
    of_model = tree.get("model", {})
    for name, module in unwrapped(training.model).named_modules():
        has = type(module).set_extra_state is not torch.nn.Module.set_extra_state
        if has and name not in of_model:
            faults.append(f"the checkpoint has no extra state of the module {name!r}")
    if training.optimizer is not None and "optimizer" in tree:
        kind = type(training.optimizer).__name__
        if kind != tree["optimizer"]["type"]:
            faults.append(
                f"the checkpoint has state of the optimizer {tree['optimizer']['type']}, and a {kind} "
                "was given"
            )
        faults += _group_faults(
            tree["optimizer"]["groups"], parameter_names(training.model, training.optimizer)
        )
    return faults


def _group_faults(saved: list[Any], given: list[list[str]]) -> list[str]:
    if len(saved) != len(given):
        return [
            f"the checkpoint has {len(saved)} groups of parameters, and the optimizer {len(given)}"
        ]
    faults = []
    for g, (group, names) in enumerate(zip(saved, given, strict=True)):
        lost = set(group["params"]) - set(names)
        new = set(names) - set(group["params"])
        if lost:
            faults.append(f"group {g} of the optimizer lacks {shown(lost)}")
        if new:
            faults.append(f"group {g} of the checkpoint's optimizer lacks {shown(new)}")
    return faults


def shown(names: set[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more


def wanted(training: Training, tree: dict[str, _trees.Json]) -> dict[str, _trees.Json]:
    """The part of the tree that a restore uses."""
    names = {"model", *training.parts()}
    if training.optimizer is not None:
        names.add("optimizer")
    return {name: value for name, value in tree.items() if name in names}


def devices_of_state(training: Training, tree: dict[str, _trees.Json]) -> dict[str, Any]:
    """The device of each tensor of the optimizer's state, by name: that of its parameter."""
    devices: dict[str, Any] = {}
    if training.optimizer is None:
        return devices
    names = parameter_names(training.model, training.optimizer)
    for group, of_group in zip(training.optimizer.param_groups, names, strict=True):
        for name, parameter in zip(of_group, group["params"], strict=True):
            state = tree["optimizer"]["state"].get(name, {})
            devices.update(dict.fromkeys(_trees.names_in(state), parameter.device))
    return devices


def apply(training: Training, tree: dict[str, _trees.Json], decoder: _trees.Decoder) -> None:
    """Gives all parts but the model's tensors their state. The memory of `decoder` is filled."""
    modules = dict(unwrapped(training.model).named_modules())
    for name, value in tree.get("model", {}).items():
        if name in modules:
            modules[name].set_extra_state(decoder.build(value))
    if training.optimizer is not None:
        _apply_optimizer(training, tree["optimizer"], decoder)
    for name, part in training.parts().items():
        part.load_state_dict(decoder.build(tree[name]))


def _apply_optimizer(
    training: Training, saved: dict[str, _trees.Json], decoder: _trees.Decoder
) -> None:
    # Not by load_state_dict(), which rounds the state of 16-bit parameters to 16 bits.
    optimizer = training.optimizer
    assert optimizer is not None
    names = parameter_names(training.model, optimizer)
    for group, of_group, names_of_group in zip(
        optimizer.param_groups, saved["groups"], names, strict=True
    ):
        device = group["params"][0].device if group["params"] else None
        group.update(decoder.build(of_group["options"], device))
        for name, parameter in zip(names_of_group, group["params"], strict=True):
            optimizer.state.pop(parameter, None)
            state = saved["state"].get(name)
            if state is not None:
                optimizer.state[parameter] = {
                    key: _beside(parameter, key, decoder.build(value, parameter.device))
                    for key, value in state.items()
                }


def _beside(parameter: Any, key: str, value: Any) -> Any:
    """The value on the parameter's device. As in torch, a count of steps stays where it was."""
    if isinstance(value, torch.Tensor) and key != "step":
        return value.to(parameter.device)
    return value


# Random number generators


def apply_rng(progress: _core.TrainerProgress) -> None:
    for _, name, state in progress.rng:
        try:
            _apply_one(name, state)
        except (ValueError, TypeError, RuntimeError) as error:
            raise CorruptionError(
                f"the state of the generator {name} is malformed: {error}"
            ) from error


def _apply_one(name: str, state: bytes) -> None:
    if name == "python":
        random.setstate(rng_value(name, state))
    elif name == "numpy":
        np.random.set_state(rng_value(name, state))
    elif name == "torch":
        torch.set_rng_state(rng_value(name, state))
    elif name.startswith("cuda:") and int(name[5:]) < torch.cuda.device_count():
        torch.cuda.set_rng_state(rng_value(name, state), int(name[5:]))


def rng_value(name: str, state: bytes) -> Any:
    """What the library of a generator takes as its state."""
    if name == "python":
        version, numbers, gauss = json.loads(state)
        return version, tuple(numbers), gauss
    if name == "numpy":
        kind, keys, position, has_gauss, value = json.loads(state)
        return kind, np.array(keys, np.uint32), position, has_gauss, value
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
