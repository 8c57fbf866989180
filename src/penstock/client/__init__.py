"""The client library: the same for an embedded and a remote store, asynchronous and blocking.

The names are those of ``penstock``. Importing it loads nothing; each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.blocking.byte_streams import ByteStream
    from penstock.client.blocking.erasures import Erasures
    from penstock.client.blocking.group_transactions import GroupTransaction, TypedGroupTransaction
    from penstock.client.blocking.groups import ReaderGroup
    from penstock.client.blocking.levels import Holds, LevelPolicy, Retention
    from penstock.client.blocking.readers import GroupReader, Reader
    from penstock.client.blocking.stores import Store, Stream
    from penstock.client.blocking.tables import Table
    from penstock.client.blocking.typed import TypedReader, TypedTransaction, TypedWriter
    from penstock.client.blocking.typed_group_reader import TypedGroupReader
    from penstock.client.blocking.writers import Transaction, Writer
    from penstock.client.byte_stream import AsyncByteStream
    from penstock.client.erasure import AsyncErasures
    from penstock.client.erasure_proof import Verification
    from penstock.client.processing.group_transaction import AsyncGroupTransaction
    from penstock.client.reading.blocks import Block, Event
    from penstock.client.reading.group_reader import AsyncGroupReader
    from penstock.client.reading.reader import AsyncReader
    from penstock.client.reading.reader_group import AsyncReaderGroup
    from penstock.client.retention import AsyncHolds, AsyncLevelPolicy, AsyncRetention
    from penstock.client.serializing.avro import AvroSerializer
    from penstock.client.serializing.confluent import ConfluentSchemaRegistry
    from penstock.client.serializing.events import TypedEvent
    from penstock.client.serializing.memory import MemorySchemaRegistry
    from penstock.client.serializing.plain import BytesSerializer, JsonSerializer, TextSerializer
    from penstock.client.serializing.protobuf import ProtobufSerializer
    from penstock.client.serializing.serializer import Serializer
    from penstock.client.serializing.typed_group_reader import AsyncTypedGroupReader
    from penstock.client.serializing.typed_reader import AsyncTypedReader
    from penstock.client.serializing.typed_transactions import AsyncTypedGroupTransaction, AsyncTypedTransaction
    from penstock.client.serializing.typed_writer import AsyncTypedWriter
    from penstock.client.store import AsyncStore
    from penstock.client.stream import AsyncStream
    from penstock.client.tables.entries import Entry, Insert, Put, Remove, Replace
    from penstock.client.tables.table import AsyncTable
    from penstock.client.writing.settings import WriterOptions, WriterSettings
    from penstock.client.writing.transaction import AsyncTransaction
    from penstock.client.writing.writer import AsyncWriter

__all__ = [
    "AsyncByteStream",
    "AsyncErasures",
    "AsyncGroupReader",
    "AsyncGroupTransaction",
    "AsyncHolds",
    "AsyncLevelPolicy",
    "AsyncReader",
    "AsyncReaderGroup",
    "AsyncRetention",
    "AsyncStore",
    "AsyncStream",
    "AsyncTable",
    "AsyncTransaction",
    "AsyncTypedGroupReader",
    "AsyncTypedGroupTransaction",
    "AsyncTypedReader",
    "AsyncTypedTransaction",
    "AsyncTypedWriter",
    "AsyncWriter",
    "AvroSerializer",
    "Block",
    "ByteStream",
    "BytesSerializer",
    "ConfluentSchemaRegistry",
    "Entry",
    "Erasures",
    "Event",
    "GroupReader",
    "GroupTransaction",
    "Holds",
    "Insert",
    "JsonSerializer",
    "LevelPolicy",
    "MemorySchemaRegistry",
    "ProtobufSerializer",
    "Put",
    "Reader",
    "ReaderGroup",
    "Remove",
    "Replace",
    "Retention",
    "Serializer",
    "Store",
    "Stream",
    "Table",
    "TextSerializer",
    "Transaction",
    "TypedEvent",
    "TypedGroupReader",
    "TypedGroupTransaction",
    "TypedReader",
    "TypedTransaction",
    "TypedWriter",
    "Verification",
    "Writer",
    "WriterOptions",
    "WriterSettings",
]

if not TYPE_CHECKING:  # so that a type checker refuses a name that does not exist

    def __getattr__(name: str) -> object:
        if name in __all__:  # the package above maps names to modules, as text: this package must not import it
            return getattr(import_module("penstock"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
