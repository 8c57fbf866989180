"""What BookKeeper keeps in ZooKeeper about ledgers and bookies: metadata, registrations, names of nodes.

The messages are protobuf. The tables below describe them, so no generated code is needed. Version 3 of the metadata is
written; version 2, the same message as text, is read too. Source: docs/formats/bookkeeper.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from penstock.codec.bookie import encode_varint, take_varint
from penstock.model.errors import CorruptDataError, InvalidArgumentError, ProtocolError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

MAGIC: Final = b"BookieMetadataFormatVersion\t"
VERSION: Final = 3
TEXT_VERSION: Final = 2
LAYOUT: Final = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
"""Content of the node ``LAYOUT`` of the one layout that ``ledger_path`` knows."""
LONG_ID: Final = (1 << 31) - 1
"""Ids from here on have longer paths."""
ID_MAX: Final = (1 << 63) - 1  # the largest id: ids are signed 64-bit numbers
CRC32C: Final = 3
"""The digest of all our ledgers."""

FIELDS: Final = {
    "LedgerMetadataFormat": (
        (1, "quorumSize", "int32"),
        (2, "ensembleSize", "int32"),
        (3, "length", "int64"),
        (4, "lastEntryId", "int64"),
        (5, "state", "State"),
        (6, "segment", "*Segment"),
        (7, "digestType", "DigestType"),
        (8, "password", "bytes"),
        (9, "ackQuorumSize", "int32"),
        (10, "ctime", "int64"),
        (11, "customMetadata", "*Pair"),
        (12, "cToken", "int64"),
    ),
    "Segment": ((1, "ensembleMember", "*string"), (2, "firstEntryId", "int64")),
    "Pair": ((1, "key", "string"), (2, "value", "bytes")),
    "BookieServiceInfoFormat": ((6, "endpoints", "*Endpoint"), (7, "properties", "*Property")),
    "Endpoint": (
        (1, "id", "string"),
        (2, "port", "int32"),
        (3, "host", "string"),
        (4, "protocol", "string"),
        (5, "auth", "*string"),
        (6, "extensions", "*string"),
    ),
    "Property": ((1, "key", "string"), (2, "value", "string")),
}
"""Messages: number, name and type of each field; ``*``: repeated. The names matter in version 2 only."""
ENUMS: Final = {
    "State": ((1, "OPEN"), (2, "IN_RECOVERY"), (3, "CLOSED")),
    "DigestType": ((1, "CRC32"), (2, "HMAC"), (3, "CRC32C"), (4, "DUMMY")),
}


class LedgerState(IntEnum):
    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """The bookies that hold the entries from ``first_entry`` on, by id."""

    first_entry: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """What is known about a ledger. ``last_entry`` and ``length_bytes`` are final once it is closed; -1: no entry.

    ``custom``: pairs of its creator, sorted by name. ``token``: drawn by the creator, which uses it to recognize its
    own ledger after a lost answer. None: not stored.
    """

    write_quorum: int
    ack_quorum: int
    ensembles: tuple[Ensemble, ...]
    state: LedgerState = LedgerState.OPEN
    length_bytes: int = 0
    last_entry: int = -1
    digest: int = CRC32C
    password: bytes = b""
    created_ms: int | None = None
    custom: tuple[tuple[str, bytes], ...] = ()
    token: int | None = None

    @property
    def ensemble_size(self) -> int:
        return len(self.ensembles[0].bookies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Where a bookie is reached, and what its operator says about it. The bookie's id is only a name."""

    host: str
    port: int
    properties: tuple[tuple[str, str], ...] = ()


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="penstock/bookkeeper.proto", package="penstock.bookkeeper", syntax="proto2"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, label in values:
            enum.value.add(name=label, number=number)
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for number, label, form in fields:
            repeated, form = form.startswith("*"), form.lstrip("*")
            field = message.field.add(name=label, number=number)
            field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if form in ENUMS or form in FIELDS:
                field.type = kinds.TYPE_ENUM if form in ENUMS else kinds.TYPE_MESSAGE
                field.type_name = f".penstock.bookkeeper.{form}"
            else:
                field.type = getattr(kinds, f"TYPE_{form.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"penstock.bookkeeper.{name}"))
        for name in FIELDS
    }


_MESSAGES: Final = _messages()


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """Version 3, in the byte order in which the Java client writes it."""
    message = _MESSAGES["LedgerMetadataFormat"](
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length_bytes,
        lastEntryId=metadata.last_entry,
        state=int(metadata.state),
        digestType=metadata.digest,
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum,
    )
    for ensemble in metadata.ensembles:
        message.segment.add(ensembleMember=ensemble.bookies, firstEntryId=ensemble.first_entry)
    if metadata.created_ms is not None:
        message.ctime = metadata.created_ms
    for key, value in sorted(metadata.custom):
        message.customMetadata.add(key=key, value=value)
    if metadata.token is not None:
        message.cToken = metadata.token
    body: bytes = message.SerializeToString()
    return MAGIC + b"%d\n" % VERSION + encode_varint(len(body)) + body


def decode_ledger_metadata(data: bytes, *, ledger: int) -> LedgerMetadata:
    """Inverse of ``encode_ledger_metadata``; reads version 2 too. Raises CorruptDataError, VersionTooNewError."""
    head, _, rest = data.partition(b"\n")
    number = head[len(MAGIC) :]
    if not head.startswith(MAGIC) or not number.isdigit():
        raise CorruptDataError("metadata of a ledger have no version", ledger=ledger)
    version = int(number)
    if version > VERSION:
        raise VersionTooNewError(
            "metadata of a ledger are too new", ledger=ledger, version=version, newest_known=VERSION
        )
    if version < TEXT_VERSION:
        raise CorruptDataError("metadata of a ledger have an unknown old version", ledger=ledger, version=version)
    message = _MESSAGES["LedgerMetadataFormat"]()
    try:
        if version == TEXT_VERSION:
            text_format.Parse(rest.decode(), message, allow_unknown_field=True)
        else:
            size, body = take_varint(memoryview(rest))
            if len(body) < size:
                raise CorruptDataError("metadata of a ledger are cut off", ledger=ledger)
            message.ParseFromString(bytes(body[:size]))
        return _ledger_metadata(message)
    except (DecodeError, text_format.ParseError, ValueError, ProtocolError) as error:
        raise CorruptDataError("metadata of a ledger cannot be read", ledger=ledger, cause=str(error)) from error


def _ledger_metadata(message: Any) -> LedgerMetadata:
    segments = [Ensemble(first_entry=one.firstEntryId, bookies=tuple(one.ensembleMember)) for one in message.segment]
    starts = [one.first_entry for one in segments]
    if not segments or starts != sorted(set(starts)) or starts[0] != 0:
        raise ValueError(f"ensembles do not begin in order: {starts}")
    if any(len(one.bookies) != message.ensembleSize for one in segments):
        raise ValueError("an ensemble has another size than the ledger")
    return LedgerMetadata(
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        ensembles=tuple(segments),
        state=LedgerState(message.state),
        length_bytes=message.length,
        last_entry=message.lastEntryId if message.HasField("lastEntryId") else -1,
        digest=message.digestType,
        password=message.password,
        created_ms=message.ctime if message.HasField("ctime") else None,
        custom=tuple(sorted((one.key, one.value) for one in message.customMetadata)),
        token=message.cToken if message.HasField("cToken") else None,
    )


def encode_registration(registration: Registration) -> bytes:
    """As a bookie registers itself."""
    message = _MESSAGES["BookieServiceInfoFormat"]()
    message.endpoints.add(id="bookie", port=registration.port, host=registration.host, protocol="bookie-rpc")
    for key, value in registration.properties:
        message.properties.add(key=key, value=value)
    return bytes(message.SerializeToString())


def decode_registration(data: bytes, *, bookie: str) -> Registration:
    """Where the bookie with this id is reached. Old bookies register nothing: their id is ``host:port``. Raises
    CorruptDataError."""
    message = _MESSAGES["BookieServiceInfoFormat"]()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise CorruptDataError("registration of a bookie cannot be read", bookie=bookie) from error
    properties = tuple(sorted((one.key, one.value) for one in message.properties))
    for endpoint in message.endpoints:
        if endpoint.id == "bookie" and endpoint.protocol == "bookie-rpc":
            return Registration(host=endpoint.host, port=endpoint.port, properties=properties)
    host, _, port = bookie.rpartition(":")
    if data or not host or not port.isdigit():
        raise CorruptDataError("registration of a bookie names no address", bookie=bookie)
    return Registration(host=host, port=int(port))


def ledger_path(ledger: int) -> str:
    """Where the metadata of a ledger are, below the root of BookKeeper. Raises InvalidArgumentError."""
    if not 0 <= ledger <= ID_MAX:
        raise InvalidArgumentError("ledger id is out of range", ledger=ledger)
    if ledger < LONG_ID:
        digits = f"{ledger:010d}"
        return f"{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger:019d}"
    return f"{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def parse_ledger_path(path: str) -> int | None:
    """The id of the ledger with this path; None for the path of anything else."""
    digits = "".join(path.split("/")).replace("L", "", 1)
    if not (digits.isascii() and digits.isdigit()) or int(digits) > ID_MAX:
        return None
    return int(digits) if ledger_path(int(digits)) == path else None


def sequence_of(name: str) -> int:
    """The number in the name of a sequential node, such as ``ID-0000000012``. Raises CorruptDataError."""
    digits = name.rpartition("-")[2]
    if not digits.isdigit():
        raise CorruptDataError("node has no sequence number", name=name)
    return int(digits)


def ensemble_of(ensembles: Sequence[Ensemble], entry: int) -> Ensemble:
    """The ensemble that holds ``entry``."""
    return [one for one in ensembles if one.first_entry <= max(0, entry)][-1]
