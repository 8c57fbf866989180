"""Reader groups of the blocking client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.client.blocking.loop_thread import LoopThread
from penstock.client.blocking.readers import GroupReader
from penstock.client.reading.reader import OnTruncated
from penstock.client.reading.reader_group import AsyncReaderGroup
from penstock.client.retry import DEADLINE_S
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName


class ReaderGroup:
    """Several readers that share streams. Their progress can hold and release data.

    The ``retention`` of the group says when: none, never; manual, when ``publish`` is called; automatic, at each completed
    checkpoint, which its readers begin every ``checkpoint_interval_s`` while they read. Calls raise
    ReaderGroupNotFoundError after the group is deleted, UnavailableError if the store cannot be reached.
    """

    def __init__(self, thread: LoopThread, inner: AsyncReaderGroup) -> None:
        self._thread = thread
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def scope(self) -> str:
        """The scope that the group is in."""
        return self._inner.scope

    @property
    def name(self) -> str:
        """The group's name, without its scope."""
        return self._inner.name

    @property
    def streams(self) -> Sequence[StreamName]:
        """The streams that the group reads, sorted."""
        return self._inner.streams

    def reader(self, name: str, *, on_truncated: OnTruncated = "raise") -> GroupReader:
        """A reader that has not joined yet: use it in a ``with`` block. A second reader of the ``name`` replaces the first.

        ``on_truncated``: if data was truncated before it was read, "raise" TruncatedError or "skip" it.
        """
        return GroupReader(self._thread, self._inner.reader(name, on_truncated=on_truncated))

    def readers(self) -> list[str]:
        """Names of the readers in the group, sorted. Dead readers stay until their lease ends."""
        return self._thread.call(self._inner.readers())

    def remove_reader(self, name: str) -> None:
        """Release the segments of the dead reader ``name`` now, without waiting for the end of its lease."""
        self._thread.call(self._inner.remove_reader(name))

    def positions(self) -> Mapping[StreamName, StreamCut]:
        """The position of the group, as its readers last reported it: one cut per stream."""
        return self._thread.call(self._inner.positions())

    def checkpoint(self, *, deadline_s: float = DEADLINE_S) -> Mapping[StreamName, StreamCut]:
        """Collect the positions of all readers, one consistent cut per stream. They must stay open during the call.

        Raises DeadlineExceededError after ``deadline_s``, naming the readers that did not take part. Under automatic
        retention the cuts are published.
        """
        return self._thread.call(self._inner.checkpoint(deadline_s=deadline_s))

    def publish(self, cuts: StreamCut | str | Mapping[StreamName, StreamCut]) -> None:
        """Acknowledge everything before the cuts, so that retention may release it.

        ``cuts``: one cut, its text, or a mapping as ``positions`` returns it. Raises UnsupportedError (retention is not
        manual), InvalidCutError (behind the last one, or no position of its stream), SubscriberNotFoundError.
        """
        self._thread.call(self._inner.publish(cuts))

    def delete(self) -> None:
        """Remove the group, its state and its subscriptions. Its readers fail with ReaderGroupNotFoundError."""
        self._thread.call(self._inner.delete())

    def close(self) -> None:
        """Does nothing: a group holds no resources; its readers are closed by themselves."""
        self._thread.call(self._inner.close())
