# SPDX-License-Identifier: Apache-2.0
"""States of a real training: BF16 weights, FP32 masters and two moments, some steps apart."""

import dataclasses
import json
import os
import pathlib
import sys

import safetensors.torch
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples/python"))

DISTANCES = (0, 1, 10)  # steps of the training after the first state


@dataclasses.dataclass(frozen=True)
class Size:
    name: str
    model: dict  # what makes the GPT of examples/python
    batch: int
    train_steps: int  # before the first state


SIZES = {
    size.name: size
    for size in (
        Size("tiny", {"width": 64, "layers": 2}, 4, 2),
        Size("17M", {"width": 480, "layers": 6, "heads": 8, "context": 128}, 4, 150),
        Size("100M", {"width": 768, "layers": 14, "heads": 12, "context": 128}, 4, 40),
    )
}


def train(model_size, batch, num_steps, distances):
    """Yields the state after so many steps, and those that many steps later. Prints the losses."""
    import gpt_model

    torch.manual_seed(0)
    model = gpt_model.GPT(**model_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    text = gpt_model.read_text()
    losses = []

    def step():
        loss = gpt_model.loss_of(model, text, batch, model.context)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    def state():
        found = {}
        for name, parameter in model.named_parameters():
            moments = optimizer.state[parameter]
            found[f"model.{name}"] = parameter.detach().to(torch.bfloat16)
            found[f"master.{name}"] = parameter.detach().clone()
            for key in ("exp_avg", "exp_avg_sq"):
                found[f"{key}.{name}"] = moments[key].clone()
        return found

    for distance in distances:
        while len(losses) < num_steps + distance:
            step()
        yield state()
    print(f"trained {len(losses)} steps, loss {losses[0]:.2f} to {losses[-1]:.2f}", flush=True)


def file_of(size, distance, folder):
    steps = f"{size.train_steps}+{distance}"
    return folder / f"{size.name}-{steps}-torch{torch.__version__}.safetensors"


def make(size, folder):
    """Trains, unless `folder` has the files of the states. Each file gets its name when it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    if all(file_of(size, distance, folder).exists() for distance in DISTANCES):
        return
    print(f"training {size.name}", flush=True)
    states = train(size.model, size.batch, size.train_steps, DISTANCES)
    for distance, state in zip(DISTANCES, states, strict=True):
        path = file_of(size, distance, folder)
        part = path.with_suffix(".part")
        safetensors.torch.save_file(state, part)
        os.replace(part, path)


def load(size, distance, folder):
    """A state in memory of its own, which no file stands behind."""
    found = safetensors.torch.load_file(file_of(size, distance, folder))
    return {name: tensor.clone() for name, tensor in found.items()}


def describe(size, state):
    parameters = sum(tensor.numel() for name, tensor in state.items() if name.startswith("model."))
    return {
        "parameters": parameters,
        "tensors": len(state),
        "bytes": sum(tensor.nbytes for tensor in state.values()),
        "train_steps": size.train_steps,
        "model": json.dumps(size.model),
    }


def one_name(state):
    """The tensor of the row of one tensor: a large second moment, but not the largest."""
    names = [name for name in state if name.startswith("exp_avg_sq.")]
    return sorted(names, key=lambda name: state[name].nbytes)[len(names) * 3 // 4]


def derived_from(name, state):
    """The master of which a BF16 weight is the rounded copy, or ""."""
    kind, _, rest = name.partition(".")
    master = f"master.{rest}"
    return master if kind == "model" and master in state else ""


def fp32_part(state):
    """What a trainer of FP32 has: parameters and moments."""
    return {name: tensor for name, tensor in state.items() if not name.startswith("model.")}


def bits(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def require_same(found, expected, what):
    """Every byte, of every tensor."""
    if found.keys() != expected.keys():
        raise AssertionError(f"{what}: other names than were saved")
    for name, tensor in expected.items():
        other = found[name]
        if other.dtype != tensor.dtype or other.shape != tensor.shape:
            raise AssertionError(
                f"{what}: {name} is {other.dtype} {tuple(other.shape)}, "
                f"saved was {tensor.dtype} {tuple(tensor.shape)}"
            )
        if not torch.equal(bits(other), bits(tensor)):
            raise AssertionError(f"{what}: {name} has other bytes than were saved")
