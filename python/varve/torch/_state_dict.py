# SPDX-License-Identifier: Apache-2.0
"""State dicts of torch as steps of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

from .. import _core
from .._checkpoint import Checkpoint
from .._errors import InvalidArgumentError
from .._progress import ProgressLike
from .._store import StepLike, Store
from . import _trees

_ITEM = "torch.state_dict"  # the JSON of what is no tensor


def save(
    store: Store,
    step: int,
    state_dict: Union[Mapping[Any, Any], Sequence[Any]],
    *,
    run: str = "main",
    metrics: Mapping[str, float] = {},  # noqa: B006  (only read)
    tags: Union[str, Iterable[str]] = (),
    on_existing: str = "error",
    compression: Optional[str] = None,
    num_threads: int = 0,
    progress: ProgressLike = None,
) -> _core.SaveReport:
    """Saves a nested state dict: its tensors as tensors of the step, all else as one item of JSON.

    Keys and indices joined by "." are the names of the tensors. Values may be what
    torch.load(weights_only=True) allows, and nothing is pickled. Tensors that share memory share it
    again after `load`. The other arguments are those of Store.save. Tensors on the CPU are read in
    place and must not change meanwhile. InvalidArgumentError names the value that cannot be saved:
    an object, a quantized, sparse or DTensor, a dtype that varve lacks. Nothing is saved then.
    """
    if not isinstance(state_dict, (Mapping, list, tuple)):
        raise InvalidArgumentError(
            f"a state dict is a dict, list or tuple, not a {type(state_dict).__name__}"
        )
    encoder = _trees.Encoder()
    tree = encoder.encode(state_dict, ())
    tensors = encoder.tensors()
    with store.save(
        step,
        run=run,
        metrics=metrics,
        tags=tags,
        on_existing=on_existing,
        compression=compression,
        num_threads=num_threads,
        progress=progress,
    ) as begun:
        for name, value, alias_of in tensors:
            begun.put(name, value, alias_of=alias_of)
        begun.put_bytes(_ITEM, _trees.dumps(tree))
    return begun.commit() if begun.report is None else begun.report


def load(store: Store, step: StepLike = "latest", *, device: Optional[Any] = None) -> Any:
    """The state dict of a step, in new memory, equal to what `save` was given.

    Tensors are plain tensors on the CPU. With `device`, all that were elsewhere go there. A step that
    was not saved by `save` gives a dict of its tensors by name.
    """
    return load_checkpoint(store[step], device)


def load_checkpoint(checkpoint: Checkpoint, device: Optional[Any]) -> Any:
    if _ITEM not in checkpoint.list_bytes():
        return checkpoint.load(framework="torch")
    tree = _trees.loads(checkpoint.read_bytes(_ITEM), f"item {_ITEM} of {checkpoint}")
    decoder = decoder_of(checkpoint)
    targets = decoder.allocate(tree)
    checkpoint.load(out={target.name: target.value for target in targets})
    return decoder.build(tree, device)


def decoder_of(checkpoint: Checkpoint) -> _trees.Decoder:
    checkpoint.keys()  # one call instead of one for each tensor

    def find(name: str) -> tuple[str, tuple[int, ...]]:
        tensor = checkpoint[name]
        return tensor.dtype_name, tensor.shape

    return _trees.Decoder(find)
