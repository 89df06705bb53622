# SPDX-License-Identifier: Apache-2.0
"""Safetensors files of any dtype from plain bytes. Reading is left to the stock package."""

import json
import random
import struct

import safetensors

# Bits of an element of every dtype that varve knows.
BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "U32": 32,
    "I32": 32,
    "U64": 64,
    "I64": 64,
    "BF16": 16,
    "F16": 16,
    "F32": 32,
    "F64": 64,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "C64": 64,
}


def num_bytes(dtype, shape):
    elements = 1
    for axis in shape:
        elements *= axis
    assert elements * BITS[dtype] % 8 == 0, (dtype, shape)
    return elements * BITS[dtype] // 8


def random_tensor(rng: random.Random, dtype, shape):
    """(dtype, shape, bytes). A BOOL holds only 0 and 1, the others any bits, NaNs included."""
    data = rng.randbytes(num_bytes(dtype, shape))
    if dtype == "BOOL":
        data = bytes(byte & 1 for byte in data)
    return dtype, list(shape), data


def build(tensors, metadata=None):
    """The bytes of a file that holds {name: (dtype, shape, bytes)} in the order given."""
    header, offset = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def write(path, tensors, metadata=None):
    path.write_bytes(build(tensors, metadata))
    return path


def read(path):
    """{name: (dtype, shape, bytes)} as the stock package reads it."""
    loaded = safetensors.deserialize(path.read_bytes())
    return {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in loaded}


def read_metadata(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(size)).get("__metadata__")
