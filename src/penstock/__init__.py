"""Penstock: a stream store for Python and Spark, in which *when data goes away* is a promise.

``penstock.open("./data")`` runs a store inside this process; ``penstock.connect("localhost:9090")`` reaches one that runs
elsewhere. Both give the same ``Store``. ``open_async`` and ``connect_async`` give an ``AsyncStore`` for programs with an
event loop of their own. Errors are classes of ``penstock.errors``, all of them ``PenstockError``. What calls return are
types of ``penstock.answers``.

Importing it loads nothing; each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Unpack

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from penstock import answers
    from penstock.app.settings import EmbeddedOptions
    from penstock.client.audit import AsyncAuditLog
    from penstock.client.blocking.approvals import Approvals
    from penstock.client.blocking.audit import AuditLog
    from penstock.client.blocking.byte_streams import ByteStream
    from penstock.client.blocking.erasures import Cases, Erasures
    from penstock.client.blocking.group_transactions import GroupTransaction, TypedGroupTransaction
    from penstock.client.blocking.groups import ReaderGroup
    from penstock.client.blocking.levels import Holds, LevelPolicy, Retention
    from penstock.client.blocking.readers import GroupReader, Reader, StreamsReader
    from penstock.client.blocking.stores import Store, Stream
    from penstock.client.blocking.tables import Table
    from penstock.client.blocking.typed import TypedReader, TypedTransaction, TypedWriter
    from penstock.client.blocking.typed_group_reader import TypedGroupReader
    from penstock.client.blocking.writers import Acknowledgement, Transaction, Writer
    from penstock.client.byte_stream import AsyncByteStream
    from penstock.client.cases import AsyncCases
    from penstock.client.erasure import AsyncErasures
    from penstock.client.erasure_proof import Verification
    from penstock.client.processing.group_transaction import AsyncGroupTransaction
    from penstock.client.reading.blocks import Block, Event
    from penstock.client.reading.group_reader import AsyncGroupReader
    from penstock.client.reading.reader import AsyncReader, AsyncStreamsReader
    from penstock.client.reading.reader_group import AsyncReaderGroup
    from penstock.client.retention import AsyncApprovals, AsyncHolds, AsyncLevelPolicy, AsyncRetention
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
    from penstock.client.writing.write_blocks import Place
    from penstock.client.writing.writer import AsyncAcknowledgement, AsyncWriter
    from penstock.codec.schema_ids import IdStyle
    from penstock.model import errors
    from penstock.model.callers import Caller, calling
    from penstock.model.credentials import Credentials
    from penstock.model.cuts import StreamCut
    from penstock.model.errors import PenstockError
    from penstock.model.names import StreamName
    from penstock.model.policies import RetentionPolicy, RetentionType, ScaleType, ScalingPolicy, StreamConfig
    from penstock.model.records import Record
    from penstock.model.retention import (
        INHERIT,
        Backlog,
        Combine,
        EffectivePolicy,
        HoldInfo,
        Idle,
        IdleWhen,
        Level,
        Measure,
        OnExceed,
        PolicyDocument,
        Retain,
        Unsubscribed,
    )
    from penstock.model.segments import KeyRange, SegmentId
    from penstock.net.presented import ConnectOptions
    from penstock.net.traces.start import start_tracing
    from penstock.ports.control.watermarks import TimeWindow
    from penstock.ports.schemas import RegisteredSchema, Schema, SchemaKind, SchemaReference, SchemaRegistry

# Named as text: every room imports this package, and must not reach the rooms above it thereby.
_HOMES = {
    "net.presented": "ConnectOptions",
    "net.traces.start": "start_tracing",
    "app.settings": "EmbeddedOptions",
    "client.blocking.approvals": "Approvals",
    "client.blocking.byte_streams": "ByteStream",
    "client.blocking.audit": "AuditLog",
    "client.blocking.erasures": "Cases Erasures",
    "client.blocking.group_transactions": "GroupTransaction TypedGroupTransaction",
    "client.blocking.groups": "ReaderGroup",
    "client.blocking.levels": "Holds LevelPolicy Retention",
    "client.blocking.readers": "GroupReader Reader StreamsReader",
    "client.blocking.stores": "Store Stream",
    "client.blocking.tables": "Table",
    "client.blocking.typed": "TypedReader TypedTransaction TypedWriter",
    "client.blocking.typed_group_reader": "TypedGroupReader",
    "client.blocking.writers": "Acknowledgement Transaction Writer",
    "client.byte_stream": "AsyncByteStream",
    "client.cases": "AsyncCases",
    "client.audit": "AsyncAuditLog",
    "client.erasure": "AsyncErasures",
    "client.erasure_proof": "Verification",
    "client.reading.blocks": "Block Event",
    "client.processing.group_transaction": "AsyncGroupTransaction",
    "client.reading.group_reader": "AsyncGroupReader",
    "client.reading.reader": "AsyncReader AsyncStreamsReader",
    "client.reading.reader_group": "AsyncReaderGroup",
    "client.retention": "AsyncApprovals AsyncHolds AsyncLevelPolicy AsyncRetention",
    "client.serializing.avro": "AvroSerializer",
    "client.serializing.confluent": "ConfluentSchemaRegistry",
    "client.serializing.events": "TypedEvent",
    "client.serializing.memory": "MemorySchemaRegistry",
    "client.serializing.plain": "BytesSerializer JsonSerializer TextSerializer",
    "client.serializing.protobuf": "ProtobufSerializer",
    "client.serializing.serializer": "Serializer",
    "client.serializing.typed_group_reader": "AsyncTypedGroupReader",
    "client.serializing.typed_reader": "AsyncTypedReader",
    "client.serializing.typed_transactions": "AsyncTypedGroupTransaction AsyncTypedTransaction",
    "client.serializing.typed_writer": "AsyncTypedWriter",
    "client.store": "AsyncStore",
    "client.stream": "AsyncStream",
    "client.tables.entries": "Entry Insert Put Remove Replace",
    "client.tables.table": "AsyncTable",
    "client.writing.settings": "WriterOptions WriterSettings",
    "client.writing.transaction": "AsyncTransaction",
    "codec.schema_ids": "IdStyle",
    "client.writing.write_blocks": "Place",
    "client.writing.writer": "AsyncAcknowledgement AsyncWriter",
    "model.callers": "Caller calling",
    "model.credentials": "Credentials",
    "model.cuts": "StreamCut",
    "model.errors": "PenstockError",
    "model.names": "StreamName",
    "model.policies": "RetentionPolicy RetentionType ScaleType ScalingPolicy StreamConfig",
    "model.records": "Record",
    "model.retention": (
        "Backlog Combine EffectivePolicy HoldInfo INHERIT Idle IdleWhen Level Measure OnExceed "
        "PolicyDocument Retain Unsubscribed"
    ),
    "model.segments": "KeyRange SegmentId",
    "ports.control.watermarks": "TimeWindow",
    "ports.schemas": "RegisteredSchema Schema SchemaKind SchemaReference SchemaRegistry",
}

_MODULES = {"answers": "answers", "errors": "model.errors"}

__version__ = "0.1.0"
__all__ = [
    "INHERIT",
    "Acknowledgement",
    "AsyncAcknowledgement",
    "AsyncByteStream",
    "AsyncCases",
    "AsyncAuditLog",
    "AsyncApprovals",
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
    "AsyncStreamsReader",
    "AsyncTable",
    "AsyncTransaction",
    "AsyncTypedGroupReader",
    "AsyncTypedGroupTransaction",
    "AsyncTypedReader",
    "AsyncTypedTransaction",
    "AsyncTypedWriter",
    "AsyncWriter",
    "AvroSerializer",
    "Backlog",
    "Block",
    "ByteStream",
    "BytesSerializer",
    "Caller",
    "Cases",
    "ConnectOptions",
    "Credentials",
    "Combine",
    "ConfluentSchemaRegistry",
    "EffectivePolicy",
    "EmbeddedOptions",
    "Entry",
    "AuditLog",
    "Approvals",
    "Erasures",
    "Event",
    "GroupReader",
    "GroupTransaction",
    "HoldInfo",
    "Holds",
    "IdStyle",
    "Idle",
    "IdleWhen",
    "Insert",
    "JsonSerializer",
    "KeyRange",
    "Level",
    "LevelPolicy",
    "Measure",
    "MemorySchemaRegistry",
    "OnExceed",
    "PenstockError",
    "Place",
    "PolicyDocument",
    "ProtobufSerializer",
    "Put",
    "Reader",
    "ReaderGroup",
    "Record",
    "RegisteredSchema",
    "Remove",
    "Replace",
    "Retain",
    "Retention",
    "RetentionPolicy",
    "RetentionType",
    "ScaleType",
    "ScalingPolicy",
    "Schema",
    "SchemaKind",
    "SchemaReference",
    "SchemaRegistry",
    "SegmentId",
    "Serializer",
    "Store",
    "Stream",
    "StreamConfig",
    "StreamCut",
    "StreamName",
    "StreamsReader",
    "Table",
    "TextSerializer",
    "TimeWindow",
    "Transaction",
    "TypedEvent",
    "TypedGroupReader",
    "TypedGroupTransaction",
    "TypedReader",
    "TypedTransaction",
    "TypedWriter",
    "Unsubscribed",
    "Verification",
    "Writer",
    "WriterOptions",
    "WriterSettings",
    "__version__",
    "answers",
    "calling",
    "connect",
    "connect_async",
    "errors",
    "open",
    "open_async",
    "start_tracing",
]

DIAL_S = 5.0


if not TYPE_CHECKING:  # so that a type checker refuses a name that does not exist

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"{__name__}.{_MODULES[name]}")
        for home, names in _HOMES.items():
            if name in names.split():
                return getattr(import_module(f"{__name__}.{home}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def open(path: str | Path, **settings: Unpack[EmbeddedOptions]) -> Store:  # noqa: A001 - the word for it
    """A store on the directory ``path``, created where it is missing, in this process; nothing listens.

    ``settings``: ``memory_bytes``, ``log_bytes``, ``retention_cycle_ms`` and the other fields of
    ``penstock.app.settings.EmbeddedSettings``. Raises DirectoryInUseError where the directory is open already, here or in
    another process, VersionTooNewError, InvalidArgumentError (a foreign directory, an unknown setting), CorruptDataError;
    nothing was changed then.
    """
    store: Store = import_module("penstock.app.embedded").open_store(path, settings)
    return store


def connect(
    address: str = "localhost:9090", *, dial_s: float | None = DIAL_S, **options: Unpack[ConnectOptions]
) -> Store:
    """A store that runs elsewhere. ``tls://HOST:PORT`` encrypts connections and verifies the server.

    Args:
        address: ``HOST:PORT`` of the controller; for a cluster, all controllers, separated by commas.
        dial_s: How long to wait for the first answer, in seconds. None: 30, for a store that is just being started. Once
            connected, a restart of the store goes unnoticed for 30 seconds.
        options: ``tls_ca``, ``tls_cert``, ``tls_key``, ``credentials`` and ``insecure``: see ``ConnectOptions``. Without
            them, the environment counts (``PENSTOCK_TLS_CA``, ``PENSTOCK_TOKEN_FILE`` and others).
    Raises:
        NotConnectedError: Nothing answers on ``address``.
        TlsError: The server cannot be verified, or only one side speaks TLS.
        UnauthenticatedError: The credentials are missing, wrong or expired.
        InvalidArgumentError: The address or an option is invalid.
    """
    store: Store = import_module("penstock.app.remote").connect_store(address, options, dial_s=dial_s)
    return store


def open_async(path: str | Path, **settings: Unpack[EmbeddedOptions]) -> AbstractAsyncContextManager[AsyncStore]:
    """As ``open``, for ``async with`` in a running event loop, which then also does the store's work."""
    opened: AbstractAsyncContextManager[AsyncStore] = import_module("penstock.app.embedded").open_async_store(
        path, settings
    )
    return opened


def connect_async(
    address: str = "localhost:9090", *, dial_s: float | None = DIAL_S, **options: Unpack[ConnectOptions]
) -> AbstractAsyncContextManager[AsyncStore]:
    """As ``connect``, for ``async with`` in a running event loop."""
    opened: AbstractAsyncContextManager[AsyncStore] = import_module("penstock.app.remote").connect_async_store(
        address, options, dial_s=dial_s
    )
    return opened
