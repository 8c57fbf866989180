"""What the controller stores about retention policies and holds. The form is that of ``penstock.codec.control.streams``.

Source: docs/formats/metadata.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.codec.control.policy_document import decode_document, encode_document
from penstock.codec.control.streams import Fields, Positions, dump_positions, dump_record, load_positions, load_record
from penstock.model.cuts import StreamCut
from penstock.model.errors import CorruptDataError, InvalidArgumentError, VersionTooNewError
from penstock.model.names import StreamName
from penstock.model.retention import HoldInfo, PolicyDocument

POLICY_VERSION = 1


def policy_fields(document: PolicyDocument) -> Fields:
    """A document in the form in which a stream's record carries it."""
    return {"v": POLICY_VERSION, "document": encode_document(document)}


def read_policy(fields: Any) -> PolicyDocument:
    """The document of ``policy_fields``. Raises VersionTooNewError, CorruptDataError."""
    try:
        if fields["v"] > POLICY_VERSION:
            raise VersionTooNewError("policy was written by a newer version", version=fields["v"])
        return decode_document(fields["document"])
    except (KeyError, TypeError, ValueError, InvalidArgumentError) as error:
        raise CorruptDataError("policy cannot be read", policy=repr(fields)[:80], error=str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecord:
    """The policy document of a scope, or of the server."""

    document: PolicyDocument

    def encode(self) -> bytes:
        return dump_record({"document": encode_document(self.document)})

    @classmethod
    def decode(cls, data: bytes) -> PolicyRecord:
        return load_record("policy", data, lambda f: cls(document=decode_document(f["document"])))


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRecord:
    """A hold. ``stream=None``: on the whole scope. ``incarnation`` is the stream's, so that no later stream of the name
    inherits it. ``ended_ms``: when it was lifted or had run out; the record is about to go then."""

    stream: str | None
    incarnation: int
    owner: str
    reason: str
    created_ms: int
    until_ms: int | None = None
    cut: Positions | None = None
    ended_ms: int | None = None

    def in_force(self, now_ms: int) -> bool:
        return self.ended_ms is None and (self.until_ms is None or now_ms < self.until_ms)

    def info(self, scope: str, hold_id: str) -> HoldInfo:
        """The hold as users see it."""
        name = None if self.stream is None else StreamName(scope, self.stream)
        return HoldInfo(
            id=hold_id,
            scope=scope,
            stream=name,
            owner=self.owner,
            reason=self.reason,
            created_ms=self.created_ms,
            until_ms=self.until_ms,
            cut=None if name is None or self.cut is None else StreamCut(name, self.cut),
        )

    def encode(self) -> bytes:
        return dump_record(
            {
                "stream": self.stream,
                "incarnation": self.incarnation,
                "owner": self.owner,
                "reason": self.reason,
                "created_ms": self.created_ms,
                "until_ms": self.until_ms,
                "cut": None if self.cut is None else dump_positions(self.cut),
                "ended_ms": self.ended_ms,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> HoldRecord:
        return load_record("hold", data, cls._build)

    @classmethod
    def _build(cls, fields: Fields) -> HoldRecord:
        cut = fields["cut"]
        return cls(
            stream=fields["stream"],
            incarnation=fields["incarnation"],
            owner=fields["owner"],
            reason=fields["reason"],
            created_ms=fields["created_ms"],
            until_ms=fields["until_ms"],
            cut=None if cut is None else load_positions(cut),
            ended_ms=fields["ended_ms"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldPlaceRecord:
    """In which scope the hold of an id is."""

    scope: str

    def encode(self) -> bytes:
        return dump_record({"scope": self.scope})

    @classmethod
    def decode(cls, data: bytes) -> HoldPlaceRecord:
        return load_record("hold-place", data, lambda f: cls(scope=f["scope"]))
