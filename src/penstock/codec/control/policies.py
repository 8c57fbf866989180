"""What the controller stores about retention policies and holds. Source: docs/formats/metadata.md."""

from __future__ import annotations

from typing import Annotated, Any

from penstock.codec.control.policy_document import decode_document, encode_document
from penstock.codec.control.record import Field, Fields, JsonRecord, Positions, dump_positions
from penstock.model.cuts import StreamCut
from penstock.model.errors import CorruptDataError, InvalidArgumentError, VersionTooNewError
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX
from penstock.model.retention import HoldInfo, PolicyDocument
from penstock.model.values.dataclass import dataclass

POLICY_VERSION = 1


def policy_fields(document: PolicyDocument) -> Fields:
    """A document in the form of a stream's record."""
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
class PolicyRecord(JsonRecord):
    """The policy document of a scope, or of the server."""

    KIND = "policy"
    document: Annotated[PolicyDocument, Field("the document (policy.md)", dump=encode_document, load=decode_document)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRecord(JsonRecord):
    """A hold. ``incarnation`` is the stream's, so that a later stream of the same name does not inherit the hold."""

    KIND = "hold"
    stream: Annotated[str | None, Field("null: the hold covers the whole scope")]
    incarnation: Annotated[int, Field("incarnation of the stream")]
    owner: Annotated[str, Field("who may release it")]
    reason: Annotated[str, Field("the reason, as free text")]
    created_ms: Annotated[int, Field("wall clock, ms")]
    until_ms: Annotated[int | None, Field("wall clock, ms: when it expires; null: never")] = None
    cut: Annotated[Positions | None, Field("it holds data after this cut; null: everything", dump=dump_positions)] = (
        None
    )
    ended_ms: Annotated[
        int | None,
        Field("wall clock, ms: when it was released or expired; it no longer holds data, and is about to be deleted"),
    ] = None

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
            # Earlier versions stored ends beyond 64 bits, which no protocol carries.
            until_ms=None if self.until_ms is None else min(self.until_ms, LONG_MAX),
            cut=None if name is None or self.cut is None else StreamCut(name, self.cut),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldPlaceRecord(JsonRecord):
    """The scope of the hold with this id."""

    KIND = "hold-place"
    scope: Annotated[str, Field("the scope")]
