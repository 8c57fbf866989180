"""Errors for the user of a Spark query: one line with what happened, and to which object."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from penstock.model.errors import (
    ContainerOfflineError,
    InternalError,
    PenstockError,
    QuotaExceededError,
    QuotaHeldError,
    ScopeNotFoundError,
    SegmentSealedError,
    StorageFullError,
    StreamNotFoundError,
    StreamSealedError,
    ThrottledError,
    TransactionNotFoundError,
    TransactionStateError,
)

P = ParamSpec("P")
T = TypeVar("T")

# Python sets the members of a group of exceptions off by "  | "; Spark may add its own code to the line, or below it.
_TYPED = re.compile(r"^[\s|]*penstock\.model\.errors\.(\w+: .*?)(?:\s+SQLSTATE: \w+)?\s*$", re.MULTILINE)


def readable(method: Callable[P, T]) -> Callable[P, T]:
    """``method``, with errors that reach Spark without our frames and causes, so that the last line Spark prints is
    ours.

    Broken invariants keep their traceback, because a bug report needs it.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except InternalError:
            raise
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return call


# What to do, by error class: the first that matches. Each completes a sentence.
_ADVICE: tuple[tuple[type[PenstockError], str], ...] = (
    # As in ``StreamSealedError.TO_WRITE``, which then needs no advice.
    (StreamSealedError, "a sealed stream accepts no more events, write to another one"),
    (SegmentSealedError, "a sealed stream accepts no more events, write to another one"),
    (
        TransactionStateError,
        "nothing of the batch is committed; run it again (a streaming query continues from its checkpoint)",
    ),
    (
        TransactionNotFoundError,
        "nothing of the batch is committed; run it again (a streaming query continues from its checkpoint)",
    ),
    (StreamNotFoundError, "create it first, or set allow_create_stream=true; nothing of the batch is written"),
    (ScopeNotFoundError, "create it first, or set allow_create_scope=true; nothing of the batch is written"),
    (StorageFullError, "free space, or raise the store's budget, then run the batch again"),
    (QuotaHeldError, "let the slowest subscriber catch up, or raise the quota, then run the batch again"),
    (QuotaExceededError, "let the slowest subscriber catch up, or raise the quota, then run the batch again"),
    (ThrottledError, "the store does not keep up; run the batch again, with fewer tasks at a time"),
    (ContainerOfflineError, "the store has stopped and its log says why; start it again, then run the batch again"),
)


def advice(error: PenstockError) -> str | None:
    """What a user can do about an error of a write, or None if the error's own text says it."""
    return next((text for kind, text in _ADVICE if isinstance(error, kind)), None)


def advised(method: Callable[P, T]) -> Callable[P, T]:
    """As ``readable``, for methods that write: the line also says what to do."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except InternalError:
            raise
        except PenstockError as error:
            todo = advice(error)
            if todo is None or todo in error.message:
                raise error.with_traceback(None) from None
            raise type(error)(f"{error.message}; {todo}", **error.fields) from None

    return call


def readable_items(method: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """As ``readable``, for a method that returns an iterator."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from method(*args, **kwargs)
        except InternalError:
            raise
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return call


def reason(error: BaseException) -> str | None:
    """The line in which Penstock reports why a Spark job or query failed; None if Penstock did not cause the failure.

    Takes what Spark raised on the driver, including tracebacks of workers: ``TruncatedError: the data ... segment=7``.
    """
    if isinstance(error, PenstockError):
        return f"{type(error).__name__}: {error}"
    found = _TYPED.findall(str(error))
    return str(found[-1]) if found else None
