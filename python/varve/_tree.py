# SPDX-License-Identifier: Apache-2.0
"""Names of the arrays in nested containers (a pytree)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ._errors import InvalidArgumentError


def flatten(tree: Any) -> Iterator[tuple[str, Any]]:
    """Each array of nested dicts, lists and tuples, with its keys and indices joined by "."."""
    if not isinstance(tree, (Mapping, list, tuple)):
        raise InvalidArgumentError(
            f"a tree is a dict, list or tuple of arrays, not a {type(tree).__name__}"
        )
    return _walk("", tree)


def _walk(prefix: str, node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise InvalidArgumentError(f'the key {key!r} in "{prefix}" is no string or integer')
            yield from _walk(f"{prefix}.{key}" if prefix else str(key), value)
    elif isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            yield from _walk(f"{prefix}.{i}" if prefix else str(i), value)
    elif node is None or isinstance(node, (str, bytes)):
        raise InvalidArgumentError(
            f'"{prefix}" is {node!r}, which is no array: put it into the state'
        )
    else:
        yield prefix, node
