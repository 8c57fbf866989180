"""What the controller stores about erasures. The form is that of ``penstock.codec.control.record``.

Source: docs/formats/metadata.md, docs/formats/erasure.md.
"""

from __future__ import annotations

import base64
import binascii
import enum
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import msgspec

from penstock.codec.control.record import Fields, dump_record, load_record
from penstock.codec.dictionary import JsonValue
from penstock.codec.events import HEADER_BYTES
from penstock.codec.store.erased import decode_ranges, encode_ranges
from penstock.model.answers.erasure import ErasureDigest, ErasureHold, ErasureWithdrawal, TableConfirmation
from penstock.model.errors import CorruptDataError
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass


class ErasureState(enum.Enum):
    """``GATHERING``: more pages are expected, nothing was changed. ``DEFERRED``: the request is complete, nothing was
    changed, and a hold covers some of it. ``ASKED``: decided, the store performs it. ``DONE``: there is a receipt.
    ``WITHDRAWN``: cancelled before it was decided; nothing was changed, and the id cannot be used again."""

    GATHERING = "gathering"
    DEFERRED = "deferred"
    ASKED = "asked"
    DONE = "done"
    WITHDRAWN = "withdrawn"


def _as_stored(fields: Fields, kind: type[msgspec.Struct]) -> Fields:
    """The fields, if ``kind`` can be read from them. Unknown fields are kept, because receipts repeat them. Raises
    ValueError."""
    msgspec.convert(fields, kind)
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """Why an erasure waits. ``holds``: at most 16 of those that cover it, each with ``hold``, ``owner``, ``reason`` and
    ``until_ms``; ``count``: how many there are. ``ends``: by segment, the end of the last range."""

    holds: Sequence[Mapping[str, Any]]
    count: int
    since_ms: int
    ends: Mapping[SegmentId, int]

    def fields(self) -> Fields:
        ends = {str(segment): end for segment, end in self.ends.items()}
        return {
            "holds": [dict(item) for item in self.holds],
            "count": self.count,
            "since_ms": self.since_ms,
            "ends": ends,
        }

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Deferral:
        """Inverse of ``fields``. Raises LookupError, TypeError, ValueError."""
        return cls(
            holds=[_as_stored(item, ErasureHold) for item in fields["holds"]],
            count=int(fields["count"]),
            since_ms=int(fields["since_ms"]),
            ends={SegmentId(int(segment)): int(end) for segment, end in fields["ends"].items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRecord:
    """An erasure. ``asked`` holds who requested it, why, and the search criteria; ``receipt`` is present once it is
    done.

    ``run`` names the run whose parts were decided, or wait for approval in the state ``GATHERING``. It is empty before
    that, and in records of earlier versions, whose parts have no run in their keys. ``request`` is the digest of the
    complete request (docs/formats/erasure.md). ``deferred`` is present in the state ``DEFERRED`` only; ``withdrawn``
    (``who``, ``why``, ``at_ms``, and ``identity`` if verified) in ``WITHDRAWN`` only. ``tables``: by name, the tables in
    which it was performed too, each with ``rows`` and ``at_ms``. ``identity``: the verified one of the requester; None:
    the server verified none, or an earlier version did not keep it. ``known_tables``: the tables that were subscribers of
    the stream when it was decided or done, sorted. ``confirmed``: by name, the tables that somebody stated to be clean of
    it, each with ``who``, ``why``, ``at_ms``, and ``identity`` if verified.
    """

    stream: str
    incarnation: int
    state: ErasureState
    asked: Mapping[str, Any]
    asked_ms: int
    receipt: Mapping[str, Any] | None = None
    run: str = ""
    request: Mapping[str, Any] | None = None
    deferred: Deferral | None = None
    withdrawn: Mapping[str, Any] | None = None
    tables: Mapping[str, Any] = field(default_factory=dict)
    identity: str | None = None
    known_tables: Sequence[str] = ()
    confirmed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_requested(self) -> bool:
        """Whether all its pages have arrived, and it waits for the approval of a second identity."""
        return self.state is ErasureState.GATHERING and bool(self.run)

    def encode(self) -> bytes:
        more: Fields = {} if self.deferred is None else {"deferred": self.deferred.fields()}
        if self.withdrawn is not None:
            more["withdrawn"] = dict(self.withdrawn)
        if self.tables:
            more["tables"] = dict(self.tables)
        if self.identity is not None:
            more["identity"] = self.identity
        if self.known_tables:
            more["known_tables"] = list(self.known_tables)
        if self.confirmed:
            more["confirmed"] = dict(self.confirmed)
        return dump_record(
            {
                **more,
                "stream": self.stream,
                "incarnation": self.incarnation,
                "state": self.state.value,
                "asked": dict(self.asked),
                "asked_ms": self.asked_ms,
                "receipt": None if self.receipt is None else dict(self.receipt),
                "run": self.run,
                "request": None if self.request is None else dict(self.request),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> ErasureRecord:
        return load_record("erasure", data, cls._build)

    @classmethod
    def _build(cls, fields: Fields) -> ErasureRecord:
        return cls(
            stream=str(fields["stream"]),
            incarnation=int(fields["incarnation"]),
            state=ErasureState(fields["state"]),
            asked=dict(fields["asked"]),
            asked_ms=int(fields["asked_ms"]),
            receipt=None if fields["receipt"] is None else dict(fields["receipt"]),
            run=str(fields.get("run", "")),
            request=None if fields.get("request") is None else _as_stored(fields["request"], ErasureDigest),
            deferred=None if fields.get("deferred") is None else Deferral.of(fields["deferred"]),
            withdrawn=None if fields.get("withdrawn") is None else _as_stored(fields["withdrawn"], ErasureWithdrawal),
            tables={
                str(name): {"rows": int(of["rows"]), "at_ms": int(of["at_ms"])}
                for name, of in fields.get("tables", {}).items()
            },
            identity=None if fields.get("identity") is None else str(fields["identity"]),
            known_tables=tuple(str(name) for name in fields.get("known_tables", ())),
            confirmed={
                str(name): _as_stored(of, TableConfirmation) for name, of in fields.get("confirmed", {}).items()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasurePartRecord:
    """Some of the ranges of an erasure in one segment: the payloads of events, half-open, in order. ``events``: number
    of requested events, including those without payload. ``empty``: offsets of events without payload."""

    segment: SegmentId
    ranges: Sequence[tuple[int, int]]
    events: int
    empty: Sequence[int] = ()

    @property
    def offsets(self) -> list[int]:
        """The offsets at which the requested events begin."""
        return [*(start - HEADER_BYTES for start, _ in self.ranges), *self.empty]

    def encode(self) -> bytes:
        return dump_record(self.fields())

    def fields(self) -> Fields:
        packed = base64.b64encode(encode_ranges(self.ranges)).decode()
        found: Fields = {"segment": self.segment, "events": self.events, "count": len(self.ranges), "ranges": packed}
        return {**found, "empty": list(self.empty)} if self.empty else found

    @classmethod
    def decode(cls, data: bytes) -> ErasurePartRecord:
        return load_record("erasure part", data, cls.of)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> ErasurePartRecord:
        """Inverse of ``fields``. Raises CorruptDataError, LookupError, TypeError, ValueError."""
        try:
            packed = base64.b64decode(fields["ranges"], validate=True)
        except binascii.Error as error:
            raise CorruptDataError("list of ranges is malformed", segment=fields["segment"]) from error
        return cls(
            segment=SegmentId(int(fields["segment"])),
            ranges=decode_ranges(packed, int(fields["count"])),
            events=int(fields["events"]),
            empty=[int(offset) for offset in fields.get("empty", ())],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureChunksRecord:
    """The effect of the erasure on some chunks: one JSON object per chunk, which names its segment. ``segment``: of the
    first."""

    segment: SegmentId
    chunks: Sequence[Mapping[str, Any]]

    def encode(self) -> bytes:
        return dump_record({"segment": self.segment, "chunks": [dict(item) for item in self.chunks]})

    @classmethod
    def decode(cls, data: bytes) -> ErasureChunksRecord:
        return load_record(
            "erasure chunks", data, lambda f: cls(segment=SegmentId(int(f["segment"])), chunks=list(f["chunks"]))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureChainRecord:
    """The last receipt: its number, the erasure, and the digest that the next one continues."""

    sequence: int
    erasure: str
    sha256: str

    def encode(self) -> bytes:
        return dump_record({"sequence": self.sequence, "erasure": self.erasure, "sha256": self.sha256})

    @classmethod
    def decode(cls, data: bytes) -> ErasureChainRecord:
        return load_record(
            "erasure chain",
            data,
            lambda f: cls(sequence=int(f["sequence"]), erasure=str(f["erasure"]), sha256=str(f["sha256"])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureMarkRecord:
    """A mark: the erasure under the key is not done yet."""

    def encode(self) -> bytes:
        return dump_record({})

    @classmethod
    def decode(cls, data: bytes) -> ErasureMarkRecord:
        return load_record("erasure mark", data, lambda _: cls())


WITHOUT_ANNOTATIONS: Mapping[type, JsonValue] = {
    ErasureRecord: JsonValue(
        name="ErasureRecord",
        fields=(
            ("stream", "text", "scope and name of the stream"),
            ("incarnation", "int", "incarnation of the stream"),
            ("state", "text", "`gathering`, `deferred`, `asked`, `done` or `withdrawn`"),
            ("asked", "object", "who requested it, why, and the search"),
            ("asked_ms", "int", "wall clock, ms"),
            ("receipt", "object or null", "the receipt (erasure.md)"),
            (
                "run",
                "text",
                "the run whose parts were decided, or (`gathering`) wait for approval; empty before and in older records",
            ),
            ("request", "object or null", "digest of the decided request (erasure.md); null in older records"),
            (
                "deferred",
                "object",
                "why it waits (erasure.md), and `ends`: by segment, where the last range ends; in the state `deferred` only",
            ),
            (
                "withdrawn",
                "object",
                "`who`, `why`, `at_ms`, `identity` of the withdrawal; only in the state `withdrawn`",
            ),
            (
                "tables",
                "object",
                "by name, tables in which it was performed too: `rows` and `at_ms`; absent: there are none",
            ),
            ("identity", "text", "verified identity of the requester; absent: none was verified, and in older records"),
            (
                "known_tables",
                "list",
                "tables that were subscribers of the stream when it was decided or done; absent: none, and in older records",
            ),
            (
                "confirmed",
                "object",
                "by name, tables that somebody stated to be clean of it: `who`, `why`, `at_ms`, `identity`; absent: none",
            ),
        ),
    ),
    ErasurePartRecord: JsonValue(
        name="ErasurePartRecord",
        fields=(
            ("segment", "int", "the segment"),
            ("events", "int", "how many events were requested, those without payload included"),
            ("count", "int", "how many ranges there are"),
            ("ranges", "text", "base64 of ERASED RANGES: the payloads of the events"),
            ("empty", "list", "offsets of events without payload; absent: there are none"),
        ),
    ),
    ErasureChunksRecord: JsonValue(
        name="ErasureChunksRecord",
        fields=(
            ("segment", "int", "the segment of the first chunk"),
            ("chunks", "list", "an object for each chunk, as in the receipt (erasure.md)"),
        ),
    ),
    ErasureMarkRecord: JsonValue(name="ErasureMarkRecord", fields=()),
    ErasureChainRecord: JsonValue(
        name="ErasureChainRecord",
        fields=(
            ("sequence", "int", "number of the receipt"),
            ("erasure", "text", "id of its erasure"),
            ("sha256", "text", "its digest, which the next receipt continues"),
        ),
    ),
}
"""The fields of records whose classes do not annotate them."""
