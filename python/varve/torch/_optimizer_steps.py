# SPDX-License-Identifier: Apache-2.0
"""What an optimizer did in its last step. A save of each step then stores little more than the gradients."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .. import _core
from . import _training


class OptimizerSteps:
    """Notes the steps of one optimizer. Thread rule: one thread, that of the training.

    Adam and AdamW of torch.optim are known (varve/optimizer_step.h). Of other optimizers nothing is noted.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._parameters = [
            (f"model.{name}", f"exp_avg.{name}", f"exp_avg_sq.{name}", group)
            for group, names in enumerate(_training.parameter_names(model, optimizer))
            for name in names
        ]
        self._num_noted = 0  # since the last take
        self._groups: Optional[list[tuple[float, float, float, float, float]]] = None
        self._number: Optional[int] = None  # of the last step
        self._hooks: list[Any] = []
        if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
            self._hooks.append(optimizer.register_step_post_hook(self._note))
            if hasattr(optimizer, "register_load_state_dict_post_hook"):
                self._hooks.append(optimizer.register_load_state_dict_post_hook(self._forget))

    def take(self) -> Optional[_core.OptimizerStep]:
        """The step since the last call. None: there was none that is known, or more than one."""
        num_noted, self._num_noted = self._num_noted, 0
        if num_noted != 1 or self._groups is None or self._number is None:
            return None
        return _core.OptimizerStep.make(self._number, 1.0, self._groups, self._parameters)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _forget(self, *_: Any) -> None:
        """The optimizer goes on from another step."""
        self._number = self._groups = None

    def _note(self, optimizer: Any, *_: Any) -> None:
        # A capture does no step, and may ask the GPU for nothing.
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        self._num_noted += 1
        # A scaler may skip the step on the GPU, and nobody knows that here.
        may_skip = getattr(optimizer, "found_inf", None) is not None
        self._number = None if may_skip else _number_of(optimizer, self._number)
        groups = [_group_of(optimizer, group) for group in optimizer.param_groups]
        known = [group for group in groups if group is not None]
        self._groups = known if len(known) == len(groups) else None


def _number_of(optimizer: Any, before: Optional[int]) -> Optional[int]:
    """The number of the step, which a GPU is asked for once at most: asking waits for it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            if step is None:
                continue
            if before is not None and isinstance(step, torch.Tensor) and step.device.type != "cpu":
                return before + 1
            return int(step)
    return None


def _group_of(optimizer: Any, group: Any) -> Optional[tuple[float, float, float, float, float]]:
    """lr, both betas, eps and the decay of the weights. None: they lie on a GPU, or are others."""
    try:
        values = [group["lr"], *group["betas"], group["eps"], group["weight_decay"]]
        on_device = any(isinstance(v, torch.Tensor) and v.device.type != "cpu" for v in values)
        if on_device or group.get("amsgrad"):
            return None
        lr, beta1, beta2, eps, decay = (float(value) for value in values)
    except (KeyError, TypeError, ValueError, RuntimeError):  # a subclass has other settings
        return None
    # The decay of Adam is part of the gradient.
    is_apart = group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW))
    return lr, beta1, beta2, eps, decay if is_apart else 0.0
