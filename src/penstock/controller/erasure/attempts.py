"""The progress of running erasures, and why one is stuck."""

from __future__ import annotations

import errno
from typing import Any

from penstock.model.answers.erasure import ErasureProgress
from penstock.model.errors import (
    CorruptDataError,
    FencedError,
    KeptBySnapshotError,
    PenstockError,
    StorageFullError,
    UnavailableError,
)
from penstock.model.values.dataclass import dataclass

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def cause_of(error: Exception) -> str:
    """Why an attempt failed: a ``cause`` of docs/formats/erasure.md."""
    if isinstance(error, StorageFullError) or (isinstance(error, OSError) and error.errno in _NO_SPACE):
        return "no space"
    if isinstance(error, UnavailableError | FencedError) and not isinstance(error, KeptBySnapshotError):
        return "unavailable"
    return "damage" if isinstance(error, CorruptDataError) else "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    text: str
    cause: str
    place: tuple[bool, int]
    tries: int


class Attempts:
    """Progress and failures by erasure. Progress is whether the chunks are done, and how many segments are done."""

    def __init__(self) -> None:
        self._progress: dict[str, tuple[bool, int, int]] = {}
        self._failures: dict[str, _Failure] = {}

    def reached(self, erasure: str, *, segments: int, of: int, is_log: bool = False) -> None:
        """Note the progress. An earlier failure is forgotten when an attempt gets further than the failed one."""
        self._progress[erasure] = is_log, segments, of
        failure = self._failures.get(erasure)
        if failure is not None and (is_log, segments) > failure.place:
            del self._failures[erasure]

    def failed(self, erasure: str, error: Exception) -> None:
        """Note why an attempt ended."""
        before = self._failures.get(erasure)
        is_log, segments, _ = self._progress.get(erasure, (False, 0, 0))
        self._failures[erasure] = _Failure(
            text=str(error) if isinstance(error, PenstockError | OSError) else repr(error),
            cause=cause_of(error),
            place=(is_log, segments) if before is None else max(before.place, (is_log, segments)),
            tries=1 if before is None else before.tries + 1,
        )

    def ended(self, erasure: str) -> None:
        self._progress.pop(erasure, None)
        self._failures.pop(erasure, None)

    def fields(self, erasure: str) -> dict[str, Any]:
        """The fields for the state of an erasure."""
        found: dict[str, Any] = {}
        failure = self._failures.get(erasure)
        if failure is not None:
            found |= {"waits_for": failure.text, "cause": failure.cause, "tries": failure.tries}
        if erasure in self._progress:
            is_log, segments, of = self._progress[erasure]
            found["progress"] = ErasureProgress(phase="log" if is_log else "chunks", segments=segments, of=of)
        return found
