# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class for each status code of varve, with the message of the library unchanged."""

from __future__ import annotations


class Error(Exception):
    """What every call of varve raises. `code` is the name of the status code."""

    code = "error"

    def __str__(self) -> str:  # a KeyError would quote the message
        return Exception.__str__(self)


class NotFoundError(Error, KeyError):
    """There is no such store, run, step, tensor or item."""

    code = "not found"


class AlreadyExistsError(Error, FileExistsError):
    """The step, run, tag or store is there already."""

    code = "already exists"


class InvalidArgumentError(Error, ValueError):
    """The caller's input breaks a stated rule, and nothing was changed."""

    code = "invalid argument"


class CorruptionError(Error):
    """Stored bytes are not what was written. The message says where."""

    code = "corruption"


class IOError(Error, OSError):  # noqa: A001  (named as the status code is)
    """The file system failed: a full disk, a missing permission, a vanished file."""

    code = "I/O error"


class LockedError(Error):
    """Another process or handle has the store open for writing."""

    code = "locked"


class UnavailableError(Error):
    """An optional device or library is not there."""

    code = "unavailable"


class FailedPreconditionError(Error):
    """The right call at the wrong moment: a closed store, a save that is over, a step in use."""

    code = "failed precondition"


class AbortedError(Error):
    """The operation was given up and left no trace."""

    code = "aborted"


class ForkedError(Error):
    """A handle that was opened before a fork was used in the child. Open the store there."""

    code = "forked"


BY_CODE: dict[str, type[Error]] = {
    kind.code: kind
    for kind in (
        NotFoundError,
        AlreadyExistsError,
        InvalidArgumentError,
        CorruptionError,
        IOError,
        LockedError,
        UnavailableError,
        FailedPreconditionError,
        AbortedError,
        ForkedError,
    )
}
