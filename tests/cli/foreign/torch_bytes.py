# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save without torch, honest ones and others: pickles, operation by operation."""

import io
import struct
import zipfile


def text(value):
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def integer(value):
    return b"J" + struct.pack("<i", value)


def number(value):
    return b"G" + struct.pack(">d", value)


def name_of(module, name):
    return f"c{module}\n{name}\n".encode()


def items(*operations):
    return b"(" + b"".join(operations) + b"t"


def call(module, name, *arguments):
    return name_of(module, name) + items(*arguments) + b"R"


def tensor(key, shape, storage="FloatStorage", count=None, strides=None, offset=0):
    """A dense tensor that is all of its storage, unless told otherwise."""
    dense, elements = [], 1
    for length in reversed(shape):
        dense.insert(0, elements)
        elements *= length
    place = items(
        *(text("storage"), name_of("torch", storage), text(key), text("cpu")),
        integer(elements if count is None else count),
    )
    return call(
        *("torch._utils", "_rebuild_tensor_v2", place + b"Q", integer(offset)),
        items(*map(integer, shape)),
        items(*map(integer, dense if strides is None else strides)),
        *(b"\x89", call("collections", "OrderedDict")),
    )


def mapping(pairs):
    """A dict of keys that are text and of operations."""
    return b"}(" + b"".join(text(key) + value for key, value in pairs.items()) + b"u"


def pickle(operations):
    return b"\x80\x02" + operations + b"."


def archive(pickled, storages, order=b"little", folder="x", compression=zipfile.ZIP_STORED):
    """A file of torch.save: its pickle, and the bytes of each storage by key."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", compression) as made:
        made.writestr(f"{folder}/data.pkl", pickled)
        made.writestr(f"{folder}/byteorder", order)
        for key, content in storages.items():
            made.writestr(f"{folder}/data/{key}", content)
        made.writestr(f"{folder}/version", b"3\n")
    return held.getvalue()


def state_file(tensors, **options):
    """A flat state dict of float32: {name: (shape, bytes)}."""
    pairs, storages = {}, {}
    for i, (name, (shape, content)) in enumerate(tensors.items()):
        pairs[name] = tensor(str(i), shape)
        storages[str(i)] = content
    return archive(pickle(mapping(pairs)), storages, **options)
