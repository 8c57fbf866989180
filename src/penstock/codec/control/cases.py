"""What the controller stores about cases of erasure. Source: docs/formats/metadata.md, docs/formats/cases.md."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, TypeAlias

from penstock.codec.control.record import Field, JsonRecord
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass

Searched: TypeAlias = Mapping[SegmentId, tuple[int, int]]
"""By segment, the half-open range of its bytes that was searched."""


class CaseState(enum.Enum):
    """See ``core.cases.case``."""

    REQUESTED = "requested"
    OPEN = "open"
    DEFERRED = "deferred"
    PERFORMED = "performed"
    VERIFIED = "verified"
    CLOSED = "closed"
    WITHDRAWN = "withdrawn"

    @property
    def is_final(self) -> bool:
        return self in (CaseState.CLOSED, CaseState.WITHDRAWN)

    @property
    def is_proved(self) -> bool:
        """Whether nothing is left to do but to close it."""
        return self is CaseState.VERIFIED or self.is_final


def dump_searched(ranges: Searched) -> dict[str, list[int]]:
    return {str(segment): list(ranges[segment]) for segment in sorted(ranges)}


def load_searched(fields: Mapping[str, Any]) -> Searched:
    return {SegmentId(int(segment)): (int(start), int(end)) for segment, (start, end) in fields.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRecord(JsonRecord):
    """A case: whose events are erased where, who asked for it, and how far it is."""

    KIND = "case"
    targets: Annotated[list[str], Field("streams, scopes, or `*`")]
    subject: Annotated[Mapping[str, Any], Field("the matcher (cases.md): values, or keyed digests of them")]
    who: Annotated[str, Field("who opened it")]
    why: Annotated[str, Field("the reason, as free text")]
    opened_ms: Annotated[int, Field("wall clock, ms")]
    due_ms: Annotated[int, Field("wall clock, ms: when it should be verified")]
    state: Annotated[
        CaseState, Field("`requested`, `open`, `deferred`, `performed`, `verified`, `closed` or `withdrawn`")
    ] = CaseState.OPEN
    performed_ms: Annotated[int | None, Field("wall clock, ms: when a search last found no more events")] = None
    verified_ms: Annotated[int | None, Field("wall clock, ms: when the second search ended")] = None
    ended: Annotated[
        Mapping[str, Any] | None,
        Field("`who`, `why`, `at_ms` and `identity` of the end; null: it has not ended", optional=True),
    ] = None
    key: Annotated[
        str | None, Field("digest of the key that made the digests (cases.md, `key`), hex", optional=True)
    ] = None
    approval: Annotated[str | None, Field("the request for approval, once one was needed", optional=True)] = None
    confirmed: Annotated[
        list[Mapping[str, Any]],
        Field(
            "tables of deleted streams that somebody stated to be clean: `stream`, `incarnation`, `table`, `who`, `why`, "
            "`at_ms` and `identity`",
            optional=True,
        ),
    ] = field(default_factory=list)
    identity: Annotated[
        str | None,
        Field("verified identity of who opened it; absent: none was verified, and in older records", optional=True),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseStreamRecord(JsonRecord):
    """How far a case is in one stream. ``pending`` is the erasure under way, which will complete ``reached``."""

    KIND = "case stream"
    incarnation: Annotated[int, Field("incarnation of the stream")]
    searched: Annotated[
        Searched,
        Field("by segment, the start and end of the searched bytes", dump=dump_searched, load=load_searched),
    ]
    proved: Annotated[
        Searched,
        Field("by segment, the start and end of the bytes searched again", dump=dump_searched, load=load_searched),
    ]
    pending: Annotated[str, Field("id of the erasure under way; empty: none")] = ""
    rounds: Annotated[int, Field("how many erasures the case has asked for in the stream")] = 0
    events: Annotated[int, Field("erased events")] = 0
    bytes: Annotated[int, Field("erased bytes")] = 0
    late: Annotated[int, Field("erased events that were found after the first search had ended")] = 0
    skipped: Annotated[str, Field("why some of the stream cannot be searched; empty: all can")] = ""
    reached: Annotated[
        Searched | None,
        Field("`searched` once the pending erasure is done", optional=True, dump=dump_searched, load=load_searched),
    ] = None
    unreached: Annotated[
        list[str],
        Field("tables that may have rows of events that were truncated before the first search", optional=True),
    ] = field(default_factory=list)
    ended: Annotated[
        list[int],
        Field("deleted streams of this name, by incarnation, that the case had searched to their end", optional=True),
    ] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftTablesRecord(JsonRecord):
    """The tables with rows of a deleted stream, and the bytes that it had. The rows stay when the stream is freed."""

    KIND = "left tables"
    tables: Annotated[list[str], Field("tables that were subscribers of the stream when it was deleted, sorted")]
    bounds: Annotated[
        Searched,
        Field("by segment, the start and end of its bytes then", dump=dump_searched, load=load_searched),
    ]
