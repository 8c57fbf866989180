"""The client library: the same for an embedded and a remote store, asynchronous and blocking.

Importing it loads nothing; each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.blocking.stores import GroupReader, Reader, ReaderGroup, Store, Stream, Transaction, Writer
    from penstock.client.reading.blocks import Block, Event
    from penstock.client.reading.group_reader import AsyncGroupReader
    from penstock.client.reading.reader import AsyncReader
    from penstock.client.reading.reader_group import AsyncReaderGroup
    from penstock.client.store import AsyncStore, AsyncStream
    from penstock.client.writing.transaction import AsyncTransaction
    from penstock.client.writing.writer import AsyncWriter
    from penstock.client.writing.writer_core import WriterSettings

_HOMES = {
    "AsyncGroupReader": "reading.group_reader",
    "AsyncReader": "reading.reader",
    "AsyncReaderGroup": "reading.reader_group",
    "AsyncStore": "store",
    "AsyncStream": "store",
    "AsyncTransaction": "writing.transaction",
    "AsyncWriter": "writing.writer",
    "Block": "reading.blocks",
    "Event": "reading.blocks",
    "GroupReader": "blocking.stores",
    "Reader": "blocking.stores",
    "ReaderGroup": "blocking.stores",
    "Store": "blocking.stores",
    "Stream": "blocking.stores",
    "Transaction": "blocking.stores",
    "Writer": "blocking.stores",
    "WriterSettings": "writing.writer_core",
}

__all__ = [
    "AsyncGroupReader",
    "AsyncReader",
    "AsyncReaderGroup",
    "AsyncStore",
    "AsyncStream",
    "AsyncTransaction",
    "AsyncWriter",
    "Block",
    "Event",
    "GroupReader",
    "Reader",
    "ReaderGroup",
    "Store",
    "Stream",
    "Transaction",
    "Writer",
    "WriterSettings",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
