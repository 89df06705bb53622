# SPDX-License-Identifier: Apache-2.0
"""A file for each step: safetensors, torch.save, and safetensors whose tensors ZipNN has compressed."""

import importlib
import json

import torch

from .base import FilePerStep, copy_into


class Safetensors(FilePerStep):
    name = "safetensors"
    distributions = ("safetensors",)
    suffix = ".safetensors"
    how = "`save_file`, `load_file` and a copy into the tensors of the trainer, `safe_open` for one"

    def start(self):
        self.library = importlib.import_module("safetensors.torch")

    def save(self, step, state):
        self.library.save_file(state, self.path(step))

    def load(self, step, out):
        return copy_into(out, self.library.load_file(self.path(step)))

    def load_one(self, step, name, out):
        with self.library.safe_open(self.path(step), "pt") as file:
            return out.copy_(file.get_tensor(name))


class TorchSave(FilePerStep):
    name = "torch.save"
    distributions = ("torch",)
    suffix = ".pt"
    how = "`torch.save`, `torch.load(mmap=True)` and a copy into the tensors of the trainer"

    def save(self, step, state):
        torch.save(state, self.path(step))

    def load(self, step, out):
        return copy_into(out, torch.load(self.path(step), mmap=True))

    def load_one(self, step, name, out):
        return out.copy_(torch.load(self.path(step), mmap=True)[name])


class ZipNN(FilePerStep):
    name = "ZipNN files"
    distributions = ("zipnn", "safetensors")
    suffix = ".znn.safetensors"
    how = (
        "each tensor by `ZipNN(input_format='torch')` from a copy, as it overwrites what it compresses, "
        "in a safetensors file, as its own script does"
    )

    def start(self):
        self.library = importlib.import_module("safetensors.torch")
        self.zipnn = importlib.import_module("zipnn")

    def coder(self, dtype):
        return self.zipnn.ZipNN(input_format="torch", bytearray_dtype=str(dtype).split(".")[1])

    def save(self, step, state):
        packed, dtypes = {}, {}
        for name, tensor in state.items():
            encoded = self.coder(tensor.dtype).compress(tensor.clone())
            packed[name] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
            dtypes[name] = str(tensor.dtype).split(".")[1]
        self.library.save_file(packed, self.path(step), metadata={"dtypes": json.dumps(dtypes)})

    def decode(self, file, name):
        dtypes = json.loads(file.metadata()["dtypes"])
        coder = self.coder(getattr(torch, dtypes[name]))
        return coder.decompress(file.get_tensor(name).numpy().tobytes())

    def load(self, step, out):
        with self.library.safe_open(self.path(step), "pt") as file:
            for name, tensor in out.items():
                tensor.copy_(self.decode(file, name))
        return out

    def load_one(self, step, name, out):
        with self.library.safe_open(self.path(step), "pt") as file:
            return out.copy_(self.decode(file, name))
