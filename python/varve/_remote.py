# SPDX-License-Identifier: Apache-2.0
"""Stores in object stores: file:///FOLDER, s3://BUCKET/PREFIX, rados://POOL/NAMESPACE."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Optional, Union

from . import _core
from ._progress import ProgressLike, Reporter

Path = Union[str, "os.PathLike[str]"]


def looks_like_url(path: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is not None


def push(
    store: Path,
    url: str,
    *,
    steps: Iterable[Union[int, str]] = (),
    dry_run: bool = False,
    num_threads: int = 4,
    progress: ProgressLike = None,
) -> _core.PushReport:
    """Sends a store to an object store as a snapshot, also while a writer is at work in it.

    Only what the newest snapshot lacks is sent. When the call returns, the snapshot is whole and durable.
    What an interrupted push has sent is used by the next one. With `steps`, numbers or expressions such as
    "best:loss", the snapshot holds only these. Give such pushes a URL of their own. `dry_run` only says what
    would be sent.

    UnavailableError: the object store does not answer, or the outcome is unknown. Call it again.
    FailedPreconditionError: the URL holds another store, or `store` is the root of a group. NotFoundError:
    no such store or step.
    """
    wanted = [str(step) for step in steps]
    with Reporter(progress, "push") as report:
        return _core.push(os.fspath(store), url, wanted, dry_run, num_threads, report)


def pull(
    url: str,
    destination: Path,
    *,
    snapshot: Optional[int] = None,
    dry_run: bool = False,
    read_data: bool = False,
    num_threads: int = 4,
    progress: ProgressLike = None,
) -> _core.PullReport:
    """Makes a folder a copy of the store that a snapshot holds, by default the newest.

    The folder is new or empty, or an earlier pull made it and nobody has written to it since. Every file is
    verified. `read_data` also reads every chunk. After an error the folder holds what it held before.
    NotFoundError: no such snapshot. FailedPreconditionError: the folder holds something else.
    """
    with Reporter(progress, "pull") as report:
        return _core.pull(
            url, os.fspath(destination), snapshot, dry_run, read_data, num_threads, report
        )


def snapshots(url: str) -> list[_core.SnapshotInfo]:
    """The snapshots that a URL holds, the newest last. A URL under which nothing lies has none."""
    return _core.snapshots(url)


def reclaim_remote(
    url: str,
    *,
    keep_last: Optional[int] = None,
    dry_run: bool = False,
    wait_for_pushes: float = 0,
) -> _core.RemoteReclaimReport:
    """Removes from an object store what no snapshot needs, and all but the newest `keep_last` snapshots.

    `wait_for_pushes` is 0, or 30 seconds or more. The call watches for signs of life of unfinished pushes
    for that time. If a push gives none, what it has sent is removed. Pushes and pulls may go on meanwhile.
    """
    return _core.reclaim_remote(url, keep_last, dry_run, wait_for_pushes)
