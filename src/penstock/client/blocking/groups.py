"""Reader groups of the blocking client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, Unpack, overload

from penstock.client.blocking.derived import Blocking, blocking, described_by
from penstock.client.blocking.readers import GroupReader
from penstock.client.blocking.typed_group_reader import TypedGroupReader
from penstock.client.reading.reader_group import AsyncReaderGroup
from penstock.client.reading.rebalancing import GroupReaderArguments
from penstock.client.serializing.events import form_of
from penstock.client.serializing.serializer import Serializer
from penstock.model.names import StreamName

T = TypeVar("T")


class ReaderGroup(Blocking[AsyncReaderGroup]):
    """Several readers that share streams. Their progress can hold and release data.

    The ``retention`` of the group says when: none, never; manual, when ``publish`` is called; automatic, at each completed
    checkpoint, which its readers begin every ``checkpoint_interval_s`` while they read. Calls raise
    ReaderGroupNotFoundError after the group is deleted, UnavailableError if the store cannot be reached.
    """

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

    @overload
    def reader(self, name: str, *, serializer: None = None, **options: Unpack[GroupReaderArguments]) -> GroupReader: ...

    @overload
    def reader(
        self, name: str, *, serializer: Serializer[T], records: bool = False, **options: Unpack[GroupReaderArguments]
    ) -> TypedGroupReader[T]: ...

    @described_by(AsyncReaderGroup.reader, returns="GroupReader | TypedGroupReader[Any]")
    def reader(
        self, name: str, *, serializer: Serializer[Any] | None = None, records: bool = False, **options: Any
    ) -> GroupReader | TypedGroupReader[Any]:
        form = form_of(serializer, records=records)
        reader = GroupReader(self._thread, self._inner.reader(name, **options))
        return reader if form is None else TypedGroupReader(reader, form)

    readers = blocking(AsyncReaderGroup.readers)
    remove_reader = blocking(AsyncReaderGroup.remove_reader)
    positions = blocking(AsyncReaderGroup.positions)
    time_windows = blocking(AsyncReaderGroup.time_windows)
    checkpoint = blocking(AsyncReaderGroup.checkpoint)
    publish = blocking(AsyncReaderGroup.publish)
    delete = blocking(AsyncReaderGroup.delete)
    close = blocking(AsyncReaderGroup.close)
