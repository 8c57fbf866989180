"""Checks of cuts from callers, for every call of the controller that takes a cut. The rules are in ``core.cuts.check``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar, cast

from penstock.controller.stream_view import StreamView
from penstock.controller.tasks import collect
from penstock.core.cuts.check import check_lengths, check_position, check_same_stream, lengths_needed
from penstock.core.cuts.order import Positions
from penstock.core.streams.history import StreamHistory
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, SegmentNotFoundError, TruncatedError, UnavailableError
from penstock.model.names import StreamName, segment_name
from penstock.ports.data.segments import Segments

T = TypeVar("T")
Q = TypeVar("Q", bound=Callable[..., Coroutine[Any, Any, object]])

_TRIES = 8  # times that the head may move during one answer


async def check_given(
    segments: Segments, view: StreamView, history: StreamHistory, cut: StreamCut, *, reached: Positions | None = None
) -> None:
    """Return if the cut is a position of the stream, from its beginning to its current tail.

    ``reached``: a position that was checked before. The store is asked only for segments in which the cut is beyond it.
    Raises: InvalidCutError; SegmentNotFoundError if the stream has changed since ``view`` was read.
    """
    check_position(view.name, history, cut)
    open_ended = lengths_needed(history, cut.positions, reached)
    infos = await collect(open_ended, lambda segment: segments.info(segment_name(view.name, segment)))
    check_lengths(view.name, cut.positions, {segment: info.length for segment, info in infos.items()})


async def check_bound(
    segments: Segments, view: StreamView, history: StreamHistory, cut: StreamCut, *, reached: Positions | None = None
) -> None:
    """As ``check_given``, but a cut without positions stands for an end of the stream."""
    if cut.is_unbounded:
        check_same_stream(view.name, cut)
    else:
        await check_given(segments, view, history, cut, reached=reached)


async def retry_if_moved(name: StreamName, look: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``look``, which reads a stream's records and then its segments without the stream's lock.

    It is called again if the stream was scaled and truncated in between.
    Raises: UnavailableError if that happens repeatedly; what ``look`` raises.
    """
    for _ in range(_TRIES):
        try:
            return await look()
        except SegmentNotFoundError:
            continue
    raise UnavailableError("stream changes faster than its tail can be read", stream=str(name))


def asked_again(question: Q) -> Q:
    """Wrap a query that reads a stream without its lock: it starts again if the head moves meanwhile. It also does
    so if the stream is scaled meanwhile, and a record that is read later (a subscriber's) has a cut in new segments.

    Raises UnavailableError if the head moves in each of several tries; what ``question`` raises otherwise.
    """

    @wraps(question)
    async def answered(owner: object, stream: StreamName, *args: Any, **options: Any) -> object:
        unknown: InvalidCutError | None = None
        for _ in range(_TRIES):
            try:
                return await question(owner, stream, *args, **options)
            except (SegmentNotFoundError, TruncatedError):
                unknown = None
            except InvalidCutError as error:
                # If the caller or a damaged record gave the cut, the error comes again in each try.
                unknown = error
        if unknown is not None:
            raise unknown
        raise UnavailableError("stream is truncated faster than it can be read", stream=str(stream))

    return cast("Q", answered)
