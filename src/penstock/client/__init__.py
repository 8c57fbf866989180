"""The client library: the same for an embedded and a remote store, asynchronous and blocking.

Importing it loads nothing; each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.blocking import GroupReader, Reader, ReaderGroup, Store, Stream, Transaction, Writer
    from penstock.client.blocks import Block, Event
    from penstock.client.group_reader import AsyncGroupReader
    from penstock.client.reader import AsyncReader
    from penstock.client.reader_group import AsyncReaderGroup
    from penstock.client.store import AsyncStore, AsyncStream
    from penstock.client.transaction import AsyncTransaction
    from penstock.client.writer import AsyncWriter
    from penstock.client.writer_core import WriterSettings

_HOMES = {
    "AsyncGroupReader": "group_reader",
    "AsyncReader": "reader",
    "AsyncReaderGroup": "reader_group",
    "AsyncStore": "store",
    "AsyncStream": "store",
    "AsyncTransaction": "transaction",
    "AsyncWriter": "writer",
    "Block": "blocks",
    "Event": "blocks",
    "GroupReader": "blocking",
    "Reader": "blocking",
    "ReaderGroup": "blocking",
    "Store": "blocking",
    "Stream": "blocking",
    "Transaction": "blocking",
    "Writer": "blocking",
    "WriterSettings": "writer_core",
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
