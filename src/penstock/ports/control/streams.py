"""Streams: their names, configuration and lifecycle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from penstock.model.cuts import StreamCut
from penstock.model.errors import ConflictError
from penstock.model.names import StreamName
from penstock.model.policies import StreamConfig
from penstock.model.segments import SegmentRange
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.scopes import PAGE_MAX
from penstock.ports.control.subscribers import SubscriberInfo

__all__ = ["DeletedStream", "RestoredStream", "StreamDescription"]

_TRIES = 32  # changes of one stream by others, in a row, before a caller gets the error


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDescription:
    """The current state of a stream. Sizes are exact at the time of the call; ``held_by`` names what holds the head."""

    stream: StreamName
    config: StreamConfig
    epoch: int
    sealed: bool
    segments: Sequence[SegmentRange]
    head: StreamCut
    tail: StreamCut
    size_bytes: int
    written_bytes: int
    subscribers: Sequence[SubscriberInfo]
    held_by: str
    disk_bytes: int
    pending_free_bytes: int
    freed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedStream:
    """A deleted stream whose grace has not ended. Times are wall clock.

    ``incarnation``: the number of its first segment, which distinguishes deleted streams of one name; the greatest was
    created last. ``rule``: ``manual``, or the rule that deleted it. ``size_bytes``: from head to tail; None if a
    damaged record hides it. It stays on disk until ``restorable_until_ms``, or longer if a hold on the scope keeps it.
    ``caller``: who deleted it, as in the audit stream; empty if unknown.
    """

    stream: StreamName
    incarnation: int
    deleted_ms: int
    restorable_until_ms: int
    rule: str
    size_bytes: int | None
    caller: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredStream:
    """A restored stream. ``dropped_subscribers``: not restored, because their reader group was deleted, created again,
    or no longer subscribes to the stream. ``sealed``: whether the stream was sealed before its deletion."""

    stream: StreamName
    incarnation: int
    sealed: bool
    size_bytes: int | None
    dropped_subscribers: tuple[str, ...] = ()


class Streams(Protocol):
    """Streams by name. All calls may raise ScopeNotFoundError and StreamNotFoundError."""

    async def create(self, stream: StreamName, config: StreamConfig) -> None:
        """Raises ScopeNotFoundError, AlreadyExistsError, InvalidNameError."""
        ...

    async def update(self, stream: StreamName, config: StreamConfig, *, before: StreamConfig | None = None) -> None:
        """Replace the configuration; a new fixed number of segments scales the stream.

        ``before``: the configuration that the caller has read and changed. Raises StreamSealedError; ConflictError: the
        configuration is no longer ``before``, and nothing was changed. See ``change_config``.
        """
        ...

    async def exists(self, stream: StreamName) -> bool: ...

    async def config(self, stream: StreamName) -> StreamConfig: ...

    async def list(
        self, scope: str, *, tag: str | None = None, after: str = "", limit: int = PAGE_MAX
    ) -> Sequence[str]:
        """Stream names of the scope behind ``after``, sorted, internal ones included. Empty: the end."""
        ...

    async def seal(self, stream: StreamName) -> None:
        """Abort open transactions, seal all active segments. Idempotent."""
        ...

    async def delete(self, stream: StreamName, *, seal: bool = False) -> None:
        """Delete a sealed stream with its data; with ``seal``, any stream is sealed and deleted in one step.

        The name is free when this returns. A store with a deletion grace keeps the data of users' streams for that
        time: see ``restore``. A refused call changes nothing: a held stream still accepts events. Raises:
        StreamNotSealedError (not with ``seal``), RetentionHoldError.
        """
        ...

    async def truncate(self, stream: StreamName, cut: StreamCut) -> None:
        """Move the head to ``cut``. A cut equal to the head does nothing. Raises: InvalidCutError (not a cut of the
        stream, before the head, or beyond the tail), StreamSealedError, RetentionHoldError."""
        ...

    async def describe(self, stream: StreamName) -> StreamDescription: ...

    async def list_deleted(self, scope: str | None = None) -> Sequence[DeletedStream]:
        """Deleted streams that can be restored, of one scope or all, including deleted scopes; sorted by scope, stream,
        incarnation."""
        ...

    async def restore(self, stream: StreamName, *, incarnation: int | None = None) -> RestoredStream:
        """Restore a deleted stream, with its events, configuration, policy and subscribers' positions.

        ``incarnation``: which one, if several streams of this name were deleted; None: the last. A stream that was not
        sealed accepts events again, in new segments. Transactions that were open stay aborted.
        Raises: StreamNotFoundError (no such deleted stream can be restored), ConflictError (its grace has just ended),
        AlreadyExistsError (another stream has its name), ScopeNotFoundError (its scope is deleted; create it first).
        """
        ...


async def change_config(
    streams: Streams, stream: StreamName, change: Callable[[StreamConfig], StreamConfig]
) -> StreamConfig:
    """Replace the configuration by the result of ``change`` on the current one, and return it. Loses no concurrent
    change.

    Raises what ``Streams.update`` raises; ConflictError only if others change the configuration again and again.
    """
    left = _TRIES
    while True:
        before = await streams.config(stream)
        config = change(before)
        try:
            await streams.update(stream, config, before=before)
        except ConflictError:
            left -= 1
            if not left or await streams.config(stream) == before:
                raise
        else:
            return config
