# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save and folders of DCP for tests, made by the torch that is there: 50 of 8 kinds."""

import collections
import importlib
import json
import os
import random
import socket

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

BYTE_TYPES = [
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    "float4_e2m1fn_x2",
]
DTYPES = [
    *(
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "bool",
    ),
    *("uint16", "uint32", "uint64", "complex64", "complex128", "complex32", *BYTE_TYPES),
]


def raw(dtype, shape):
    """A tensor of random bits, all of which the type has."""
    kind = getattr(torch, dtype)
    count = int(numpy.prod(shape, dtype=int)) * kind.itemsize
    bits = torch.randint(0, 2 if kind == torch.bool else 256, (count,), dtype=torch.uint8)
    return bits.view(kind).reshape(shape)


def model(width, layers):
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.LayerNorm(2 * width))
        if i % 2 == 0
        else torch.nn.Sequential(torch.nn.Linear(2 * width, width), torch.nn.BatchNorm1d(width))
        for i in range(layers)
    ]
    return torch.nn.Sequential(torch.nn.Embedding(17, width), *blocks)


def modules(folder, count):
    for i in range(count):
        made = model(3 + i, 2 + i % 3)
        if i % 2:
            made = made.bfloat16()
        yield save(folder / f"module{i}.pt", made.state_dict())


def trainings(folder, count):
    optimizers = [
        lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adafactor(p),
        lambda p: torch.optim.Adam(p, foreach=True),
    ]
    schedulers = [
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 3]),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 10),
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
    ]
    for i in range(count):
        trained = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 1))
        optimizer = optimizers[i % 4](trained.parameters())
        scheduler = schedulers[(i // 2) % 4](optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            trained(torch.randn(4, 5)).square().mean().backward()
            optimizer.step()
            scheduler.step()
        yield save(
            folder / f"training{i}.pt",
            {
                "model": trained.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "rng": {"torch": torch.get_rng_state(), "python": random.Random(i).getstate()},
                "step": 100 + i,
                "epoch": i,
                "loss": 2.5 / (i + 1),
                "args": {"lr": 1e-3, "name": "run-é", "resume": None, "betas": (0.9, 0.95)},
            },
        )


def dtypes(folder, count):
    for i in range(count):
        shapes = [(3, 4), (), (0, 2), (2, 1, 6)]
        tensors = {
            f"{dtype}.{k}": raw(dtype, shape)
            for dtype in DTYPES
            for k, shape in enumerate(shapes[: 1 + i])
            if shape or dtype != "float4_e2m1fn_x2"
        }
        yield save(folder / f"dtypes{i}.pt", tensors)


def views(folder, count):
    for i in range(count):
        base = torch.randn(6 + i, 8)
        cube = torch.randn(2, 3, 4 + i)
        state = {
            "base": base,
            "transposed": base.T,
            "row": base[2],
            "column": base[:, 3],
            "block": base[1:4, 2:6],
            "stepped": base[::2, ::3],
            "same": base,
            "alone": torch.randn(5 + i, 7).T,
            "part of a large storage": torch.randn(1000)[10 : 20 + i],
            "permuted": cube.permute(2, 0, 1),
            "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "expanded": torch.randn(1).expand(3, 4 + i),
            "empty": torch.empty(0, 3),
            "empty view": base[3:3],
            "scalar": torch.tensor(1.5),
            "scalar view": base[0, 1],
            "overlapping": torch.randn(9).unfold(0, 4, 1),
            "ints": torch.arange(20).reshape(4, 5)[:, 1::2],
            "complex": raw("complex128", (4, 6))[:, ::2],
            "halves": raw("complex32", (4, 6)).T,
        }
        if i % 2:
            state = dict(reversed(state.items()))
        yield save(folder / f"views{i}.pt", state)


def values(folder, count):
    for i in range(count):
        state = {
            "a": {"b": {"c": torch.randn(2 + i)}},
            "a.b": {"c": torch.randn(3)},
            "list": [1, 2.5, "x", None, True, [torch.randn(2)], {"k": (torch.randn(1), 3)}],
            7: {0: torch.randn(2), True: torch.randn(1), None: torch.randn(1)},
            "numbers": [
                2**31,
                -(2**31),
                2**40,
                -(2**63),
                2**63,
                -(2**200),
                2**64,
                0,
                255,
                256,
                65536,
            ],
            "floats": [0.1, 1e300, 5e-324, -0.0, float("inf"), float("-inf"), float("nan"), 3.0],
            "texts": ["", "é", "日本", "\U0001f600", '"\\\n\t\x00\x7f', "\ud800", "json:1"],
            "bytes": [b"", b"abc", bytes(range(256)), bytearray(b"xyz")],
            "sets": [set(), {1, 2}, frozenset({3})],
            "complex": [1 + 2j, complex(float("inf"), -0.0)],
            "torch": [
                torch.Size([1, 2]),
                torch.device("cpu"),
                torch.float32,
                torch.int8,
                torch.device("cuda", 1),
            ],
            "ordered": collections.OrderedDict([("x", 1), ("y", torch.randn(1))]),
            "counter": collections.Counter({30: 1, 80: 2}),
            "empty": [{}, [], ()],
            "epoch": i,
        }
        path = folder / f"values{i}.pt"
        torch.save(state, path, pickle_protocol=2 + i % 4)
        yield path


def parameters(folder, count):
    tied = torch.nn.Parameter(torch.randn(4, 3))
    roots = [
        {"w": tied, "head": tied, "p": torch.nn.Parameter(torch.randn(2), requires_grad=False)},
        [torch.randn(3), torch.nn.Parameter(torch.randn(2))],
        (torch.randn(3), {"x": torch.randn(2)}),
        torch.randn(3, 4),
        torch.nn.ParameterDict({"a": torch.randn(2)}).state_dict(),
        {"only": "text", "n": 3},
    ]
    for i in range(count):
        yield save(folder / f"parameters{i}.pt", roots[i])


def sharded(folder, count):
    for i in range(count):
        place = folder / f"sharded{i}"
        place.mkdir()
        state = model(4 + i, 3).state_dict()
        files, weight_map = 2 + i % 3, {}
        for number in range(files):
            name = f"pytorch_model-{number + 1:05}-of-{files:05}.bin"
            part = {key: state[key] for key in list(state)[number::files]}
            torch.save(part, place / name)
            weight_map |= dict.fromkeys(part, name)
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (place / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        yield place


def dcp_state(i):
    """Numbers of 0 and up, so that each rank makes the same."""
    generator = torch.Generator().manual_seed(i)
    made = {
        "rows": torch.randn(7, 5, generator=generator),
        "columns": torch.randn(4, 9, generator=generator),
        "deep": torch.randn(2, 3, 8, generator=generator).bfloat16(),
        "whole": torch.randn(11, generator=generator),
        "bits": torch.randint(0, 256, (6, 4), dtype=torch.uint8, generator=generator),
    }
    return made


PLACED = {"rows": 0, "columns": 1, "deep": 2, "bits": 0}
PLAIN = {"step": 12, "lr": 1e-3, "name": "run", "betas": (0.9, 0.95), "none": None}


def save_dcp(rank, ranks, path, i, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    state = {
        name: distribute_tensor(
            tensor, mesh, [Shard(PLACED[name]) if name in PLACED else Replicate()]
        )
        for name, tensor in dcp_state(i).items()
    }
    dcp.save({"model": state, **PLAIN}, checkpoint_id=path)
    dist.destroy_process_group()


def dcp_folders(folder, count):
    for i in range(count):
        place = folder / f"dcp{i}"
        if i == 0:
            dcp.save({"model": dcp_state(i), **PLAIN}, checkpoint_id=str(place), no_dist=True)
        else:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            # Forked, because each process would import torch for seconds. DTensor imports torch._dynamo.
            importlib.import_module("torch._dynamo")
            arguments = (1 + i, str(place), i, port)
            torch.multiprocessing.start_processes(save_dcp, arguments, 1 + i, start_method="fork")
        yield place


def save(path, state):
    torch.save(state, path)
    return path


KINDS = {
    "module": (modules, 8),
    "training": (trainings, 8),
    "dtypes": (dtypes, 4),
    "views": (views, 8),
    "values": (values, 8),
    "parameters": (parameters, 6),
    "sharded": (sharded, 4),
    "dcp": (dcp_folders, 4),
}


def make(folder, kind, count=None):
    """Paths of files or folders of a kind: `count`, or as many as there are."""
    torch.manual_seed(7)
    function, usual = KINDS[kind]
    return list(function(folder, usual if count is None else count))


def load(path):
    """What the stock loaders read, as {name: tensor}, and the nested value of a single file."""
    if (path / ".metadata").exists():
        state = {"model": {k: torch.empty_like(v) for k, v in dcp_state(0).items()}}
        dcp.load(state, checkpoint_id=str(path), no_dist=True)
        return {f"model.{name}": tensor for name, tensor in state["model"].items()}, None
    if path.is_dir():
        found = {}
        for file in sorted(path.glob("*.bin")):
            found |= torch.load(file, weights_only=True)
        return found, None
    value = torch.load(path, weights_only=False)  # our own files, with values that it would refuse
    if isinstance(value, torch.Tensor):
        return {"tensor": value}, value
    return dict(flatten(value)), value


def flatten(value):
    names = set()

    def walk(value, path):
        if isinstance(value, torch.Tensor):
            name, number = path, 0
            while name in names:
                number += 1
                name = f"{path}~{number}"
            names.add(name)
            yield name, value
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from walk(item, f"{path}.{key}" if path else str(key))
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                yield from walk(item, f"{path}.{i}" if path else str(i))

    return walk(value, "")


def stored_shape(tensor):
    """The shape in varve."""
    shape = list(tensor.shape)
    if tensor.dtype in (torch.complex128, torch.complex32):
        return [*shape, 2]
    if tensor.dtype == torch.float4_e2m1fn_x2:
        return [*shape[:-1], 2 * shape[-1]]
    return shape


def stored_bytes(tensor):
    """The elements in row-major order."""
    plain = tensor.detach().contiguous().clone()
    return bytes(plain.untyped_storage())
