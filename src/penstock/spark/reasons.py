"""Errors as the user of a Spark query meets them: one line that says what happened and to what."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from penstock.model.errors import InternalError, PenstockError

P = ParamSpec("P")
T = TypeVar("T")

# Python sets the members of a group of exceptions off by "  | "; Spark may add its own code to the line, or below it.
_TYPED = re.compile(r"^[\s|]*penstock\.model\.errors\.(\w+: .*?)(?:\s+SQLSTATE: \w+)?\s*$", re.MULTILINE)


def readable(method: Callable[P, T]) -> Callable[P, T]:
    """``method``, whose errors reach Spark without our frames and causes: the last line of what Spark prints is ours.

    Broken invariants keep their traceback, because it is what a report needs.
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


def readable_items(method: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """As ``readable``, for a method that gives an iterator."""

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
    """The one line in which Penstock says why a Spark job or query failed, or None where it did not fail for us.

    Takes what Spark raised on the driver, tracebacks of workers and all: ``TruncatedError: the data ... segment=7``.
    """
    if isinstance(error, PenstockError):
        return f"{type(error).__name__}: {error}"
    found = _TYPED.findall(str(error))
    return str(found[-1]) if found else None
