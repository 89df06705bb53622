# SPDX-License-Identifier: Apache-2.0
"""Names of the arrays in nested containers (a pytree).

Containers are dicts, lists, tuples, named tuples, and, when JAX is in use, what is registered with it. Keys,
indices and field names joined by "." are the names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Optional

from ._errors import InvalidArgumentError


class _Node(NamedTuple):
    """A container: the keys of its children, the children, and what makes another of new children."""

    keys: list[str]
    children: list[Any]
    rebuild: Callable[[list[Any]], Any]


def flatten(tree: Any) -> Iterator[tuple[str, Any]]:
    """Each array of a tree with its name."""
    _require_container(tree)
    return _walk("", tree)


def rebuild(tree: Any, make: Callable[[str, Any], Any]) -> Any:
    """A tree of the same containers, where `make(name, leaf)` is in the place of each leaf."""
    _require_container(tree)
    return _map("", tree, make)


def _require_container(tree: Any) -> None:
    if _open("", tree) is None:
        raise InvalidArgumentError(
            f"a tree is a dict, list or tuple of arrays, not a {type(tree).__name__}"
        )


def _walk(prefix: str, tree: Any) -> Iterator[tuple[str, Any]]:
    node = _open(prefix, tree)
    if node is not None:
        for key, child in zip(node.keys, node.children, strict=True):
            yield from _walk(_join(prefix, key), child)
    elif tree is None or isinstance(tree, (str, bytes)):
        raise InvalidArgumentError(
            f'"{prefix}" is {tree!r}, which is no array: put it into the state'
        )
    else:
        yield prefix, tree


def _map(prefix: str, tree: Any, make: Callable[[str, Any], Any]) -> Any:
    node = _open(prefix, tree)
    if node is None:
        return make(prefix, tree)
    pairs = zip(node.keys, node.children, strict=True)
    return node.rebuild([_map(_join(prefix, key), child, make) for key, child in pairs])


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _open(prefix: str, tree: Any) -> Optional[_Node]:
    """What a container holds. None: it is a leaf."""
    if isinstance(tree, Mapping):
        names = list(tree)
        for key in names:
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise InvalidArgumentError(f'the key {key!r} in "{prefix}" is no string or integer')
        kind: Any = dict if type(tree) is dict else type(tree)
        keys = [str(key) for key in names]
        return _Node(
            keys, list(tree.values()), lambda made: kind(dict(zip(names, made, strict=True)))
        )
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return _Node(list(tree._fields), list(tree), lambda made: type(tree)(*made))
    if isinstance(tree, (list, tuple)):
        kind = type(tree)
        return _Node([str(i) for i in range(len(tree))], list(tree), lambda made: kind(made))
    return _open_registered(tree)


def _open_registered(tree: Any) -> Optional[_Node]:
    jax = sys.modules.get("jax")
    if jax is None or tree is None:
        return None
    paths, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    if len(paths) == 1 and not paths[0][0]:
        return None
    keys = [_key_name(path[-1]) for path, _ in paths]
    children = [child for _, child in paths]
    return _Node(keys, children, lambda made: jax.tree_util.tree_unflatten(structure, made))


def _key_name(key: Any) -> str:
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
