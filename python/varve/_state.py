# SPDX-License-Identifier: Apache-2.0
"""Trainer state: a dict in Python, a TrainerProgress in the store.

The keys global_step, epoch, consumed_samples, best_metric, last_loss, lr_scheduler, loss_scaler and
rng are the fields that C++ trainers and `varve show` know. Others are its extra values. An integer of
64 bits, a float, a string and a list of floats are stored as such. Any other value of JSON is stored
as a string, "json:" and its text. Floats survive exactly. A tuple comes back as a list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np

from . import _core
from ._errors import InvalidArgumentError

_Stored = Union[int, float, str, list[float]]
_INTEGERS = ("global_step", "epoch", "consumed_samples")
_FLOATS = ("best_metric", "last_loss")
_MAPS = ("lr_scheduler", "loss_scaler")
_FIELDS = (*_INTEGERS, *_FLOATS, *_MAPS, "rng")
_GIVEN = "varve.given"  # the fields that the caller gave, as the others have defaults
_JSON = "json:"


def to_progress(state: Mapping[str, Any]) -> _core.TrainerProgress:
    """What the store keeps for a state. InvalidArgumentError names the value that cannot be kept."""
    progress = _core.TrainerProgress()
    extra: dict[str, _Stored] = {}
    for key, value in state.items():
        if not isinstance(key, str):
            raise InvalidArgumentError(f"state: the key {key!r} is no string")
        if key in _INTEGERS or key in _FLOATS:
            setattr(progress, key, _number(key, value))
        elif key in _MAPS:
            if not isinstance(value, Mapping):
                raise InvalidArgumentError(f"state[{key!r}] is no dict")
            values = _plain(f"state[{key!r}]", value)
            setattr(progress, key, {name: _encode(item) for name, item in values.items()})
        elif key == "rng":
            progress.rng = [_rng(item) for item in value]
        elif key == _GIVEN:
            raise InvalidArgumentError(f"state[{key!r}] is a key of varve's own")
        else:
            extra[key] = _encode(_plain(f"state[{key!r}]", value))
    extra[_GIVEN] = ",".join(key for key in state if key in _FIELDS)
    progress.extra = extra
    return progress


def from_progress(progress: _core.TrainerProgress) -> dict[str, Any]:
    """The state as it was given. One that C++ saved has all fields."""
    extra = dict(progress.extra)
    given = extra.pop(_GIVEN, None)
    fields = given.split(",") if isinstance(given, str) else list(_FIELDS)
    state: dict[str, Any] = {}
    for key in fields:
        if key in _INTEGERS or key in _FLOATS:
            state[key] = getattr(progress, key)
        elif key in _MAPS:
            state[key] = {name: _decode(item) for name, item in getattr(progress, key).items()}
        elif key == "rng":
            state[key] = [
                {"rank": rank, "generator": generator, "state": bits}
                for rank, generator, bits in progress.rng
            ]
    state.update((key, _decode(value)) for key, value in extra.items())
    return state


def _number(key: str, value: Any) -> int | float:
    value = value.item() if isinstance(value, np.generic) else value
    if key in _FLOATS and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if key in _INTEGERS and isinstance(value, int) and not isinstance(value, bool):
        if -(2**63) <= value < 2**63:
            return value
    raise InvalidArgumentError(
        f"state[{key!r}] must be {'a float' if key in _FLOATS else 'an integer of 64 bits'}, not {value!r}"
    )


def _rng(item: Any) -> tuple[int, str, bytes]:
    try:
        return int(item["rank"]), str(item["generator"]), bytes(item["state"])
    except (TypeError, KeyError) as error:
        raise InvalidArgumentError(
            'state["rng"] must be a list of {"rank": int, "generator": str, "state": bytes}'
        ) from error


def _plain(path: str, value: Any) -> Any:
    """The value in plain Python types. InvalidArgumentError: JSON cannot say it exactly."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidArgumentError(f"{path}: the key {key!r} is no string")
        return {key: _plain(f"{path}[{key!r}]", item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [_plain(f"{path}[{i}]", item) for i, item in enumerate(value)]
    raise InvalidArgumentError(
        f"{path} is a {type(value).__name__}: the state holds values of JSON. Save arrays as tensors and "
        "bytes with put_bytes"
    )


def _encode(value: Any) -> _Stored:
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str) and not value.startswith(_JSON):
        try:
            value.encode()
            return str(value)
        except UnicodeEncodeError:
            pass  # JSON escapes it
    if isinstance(value, list) and value and all(isinstance(item, float) for item in value):
        return value
    return _JSON + json.dumps(value)


def _decode(value: _Stored) -> Any:
    if isinstance(value, str) and value.startswith(_JSON):
        return json.loads(value[len(_JSON) :])
    return value
