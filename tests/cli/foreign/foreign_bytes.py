# SPDX-License-Identifier: Apache-2.0
"""Files of InfiniTrain and llm.c, byte by byte from their descriptions, with random contents."""

import random
import struct

CKPT_MAGIC, GPT2_MAGIC, LLAMA3_MAGIC, STATE_MAGIC = 0x54504B43, 20240326, 20240803, 20240527

# InfiniTrain's dtype codes: (code, bytes an element).
CKPT_DTYPES = {
    "BOOL": (0, 1),
    "U8": (1, 1),
    "I8": (2, 1),
    "U16": (3, 2),
    "I16": (4, 2),
    "U32": (5, 4),
    "I32": (6, 4),
    "U64": (7, 8),
    "I64": (8, 8),
    "BF16": (9, 2),
    "F16": (10, 2),
    "F32": (11, 4),
    "F64": (12, 8),
}


def product(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def ckpt_tensor(rng: random.Random, dtype, shape):
    data = rng.randbytes(product(shape) * CKPT_DTYPES[dtype][1])
    return dtype, shape, bytes(byte & 1 for byte in data) if dtype == "BOOL" else data


def ckpt(tensors):
    """A .ckpt file of [(name, (dtype, shape, data))], in that order."""
    parts = [struct.pack("<III", CKPT_MAGIC, 1, len(tensors))]
    for name, (dtype, shape, data) in tensors:
        raw = name.encode()
        parts += [
            struct.pack("<I", len(raw)),
            raw,
            struct.pack("<b", CKPT_DTYPES[dtype][0]),
            struct.pack(f"<I{len(shape)}q", len(shape), *shape),
            struct.pack("<Q", len(data)),
            data,
        ]
    return b"".join(parts)


def trainer_state(step, comma=""):
    """trainer_state.json as InfiniTrain writes it, and with the missing comma put in."""
    return (
        f'{{\n  "global_step": {step},\n  "consumed_batches": {2 * step},\n  "last_lr": 0.0003,\n'
        '  "n_layer": 2,\n  "n_head": 3,\n  "n_kv_head": 3,\n  "n_embd": 12,\n'
        f'  "vocab_size": 200{comma}\n  "ddp_size": 2,\n  "tp_size": 4,\n  "sp_size": 4,\n  "pp_size": 3\n}}\n'  # noqa: E501
    )


def parameters(rng, widths, element):
    """{name: data} in file order: (name, shape, is_layered) each over all layers."""
    held = {}
    for name, shape, layers in widths:
        for layer in range(layers or 1):
            full = name if layers is None else f"transformer.h.{layer}.{name}"
            held[full] = (list(shape), rng.randbytes(product(shape) * element))
    return held


def gpt2(rng, bf16, vocab=200, width=12, layers=2, heads=3, context=8):
    """The bytes of a model file and {name: (shape, data)}."""
    c, padded = width, -(-vocab // 128) * 128
    header = [GPT2_MAGIC, 5 if bf16 else 3, context, vocab, layers, heads, c, padded]
    widths = [
        ("transformer.wte.weight", (padded, c), None),
        ("transformer.wpe.weight", (context, c), None),
        ("ln_1.weight", (c,), layers),
        ("ln_1.bias", (c,), layers),
        ("attn.c_attn.weight", (3 * c, c), layers),
        ("attn.c_attn.bias", (3 * c,), layers),
        ("attn.c_proj.weight", (c, c), layers),
        ("attn.c_proj.bias", (c,), layers),
        ("ln_2.weight", (c,), layers),
        ("ln_2.bias", (c,), layers),
        ("mlp.c_fc.weight", (4 * c, c), layers),
        ("mlp.c_fc.bias", (4 * c,), layers),
        ("mlp.c_proj.weight", (c, 4 * c), layers),
        ("mlp.c_proj.bias", (c,), layers),
        ("transformer.ln_f.weight", (c,), None),
        ("transformer.ln_f.bias", (c,), None),
    ]
    held = parameters(rng, widths, 2 if bf16 else 4)
    return model_file(header, held), held


def llama3(
    rng, bf16, plain, vocab=50, width=16, layers=2, heads=4, kv_heads=2, multiple=8, factor=1.3
):
    """As gpt2. `plain` stores the three floats as plain llm.c does, cut to integers."""
    c = width
    ffn = -(-int(factor * int(2 * 4 * c / 3)) // multiple) * multiple
    qkv = c + 2 * kv_heads * (c // heads)
    floats = {8: factor, 10: 1e-5, 11: 500000.0}
    header = [
        LLAMA3_MAGIC,
        5 if bf16 else 3,
        32,
        vocab,
        layers,
        heads,
        kv_heads,
        c,
        0,
        multiple,
        0,
        0,
        1,
        4,
        3,
        1,
    ]
    for at, value in floats.items():
        header[at] = int(value) if plain else struct.unpack("<i", struct.pack("<f", value))[0]
    widths = [
        ("transformer.wte.weight", (vocab, c), None),
        ("ln_1.weight", (c,), layers),
        ("attn.c_attn.weight", (qkv, c), layers),
        ("attn.c_proj.weight", (c, c), layers),
        ("ln_2.weight", (c,), layers),
        ("mlp.c_fc.weight", (ffn, c), layers),
        ("mlp.c_fc2.weight", (ffn, c), layers),
        ("mlp.c_proj.weight", (c, ffn), layers),
        ("transformer.ln_f.weight", (c,), None),
        ("lm_head.weight", (vocab, c), None),
    ]
    held = parameters(rng, widths, 2 if bf16 else 4)
    return model_file(header, held), held


def model_file(header, held):
    return struct.pack("<256i", *header, *[0] * (256 - len(header))) + b"".join(
        data for _, data in held.values()
    )


def num_parameters(held):
    return sum(product(shape) for shape, _ in held.values())


def state_file(rng, elements, step=7, rank=0, processes=1, master=True, shuffle=False):
    """The bytes of a state file, and {name: data} of its vectors."""
    header = bytearray(1024)
    struct.pack_into("<6i", header, 0, STATE_MAGIC, 1, processes, rank, master, shuffle)
    struct.pack_into("<i", header, 40, step)
    struct.pack_into("<2Q", header, 80, rng.getrandbits(64), rng.getrandbits(64))
    struct.pack_into("<2Q", header, 120, 3, 1234)
    vectors = {
        name: rng.randbytes(4 * elements)
        for name in ["adam.m", "adam.v", "adam.master"][: 2 + master]
    }
    loader = b""
    if shuffle:
        loader = (
            struct.pack("<Q5i", 5, *range(5))
            + struct.pack("<Q9i", 9, *range(9))
            + rng.randbytes(2520)
        )
    return bytes(header) + b"".join(vectors.values()) + loader, vectors
