"""The ledger: what was erased, kept outside of the store, so that a store from an older copy can erase it again.

A ledger is a file of JSON lines. Source: docs/formats/cases.md, docs/design/0057-erasure-ledger.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from penstock.codec.notes import ledger_text
from penstock.codec.store.erased import decode_ranges, encode_ranges
from penstock.core.segments.erasure import Range
from penstock.core.segments.erasure_receipt import canonical
from penstock.model.answers.erasure import Erasure, ErasureCase
from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.names import SYSTEM_SCOPE, StreamName
from penstock.model.retention import HoldInfo
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass

__all__ = ["Ledger", "LedgerErasure"]

FORMAT = 1
LEDGER = "erasure-ledger"
"""The field ``penstock`` of the first line, as in other signed documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerErasure:
    """A performed erasure: the blanked payloads, by segment. ``sha256``: of its receipt."""

    erasure: str
    stream: StreamName
    who: str
    why: str
    sha256: str
    ranges: Mapping[SegmentId, Sequence[Range]]

    @property
    def again(self) -> str:
        """The id under which another copy of the store performs it again."""
        return "again." + hashlib.sha256(f"{self.stream}\n{self.erasure}\n{self.sha256}".encode()).hexdigest()[:32]

    def fields(self) -> dict[str, Any]:
        return {
            "erasure": self.erasure,
            "stream": str(self.stream),
            "who": self.who,
            "why": self.why,
            "sha256": self.sha256,
            "segments": [
                {"segment": segment, "count": len(own), "ranges": base64.b64encode(encode_ranges(own)).decode()}
                for segment, own in sorted(self.ranges.items())
            ],
        }

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> LedgerErasure:
        """Inverse of ``fields``. Raises LookupError, TypeError, ValueError, PenstockError."""
        ranges = {
            SegmentId(int(item["segment"])): decode_ranges(
                base64.b64decode(item["ranges"], validate=True), int(item["count"])
            )
            for item in fields["segments"]
        }
        named = {name: str(fields[name]) for name in ("erasure", "who", "why", "sha256")}
        return cls(stream=StreamName.parse(fields["stream"]), ranges=ranges, **named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All that was erased. ``holds``: ids of the holds in force when it was exported; others had ended by then.
    ``cases``: each with ``case``, ``targets``, ``subject``, ``who``, ``why``, ``opened_ms``, ``due_ms``, ``state`` and
    ``ended``. ``key``: digest of the key of the digests in them. ``note``: signs all lines before the last; empty: it is
    not signed yet. ``rotations``: of the key that signed it, oldest first."""

    exported_ms: int
    erasures: Sequence[LedgerErasure] = ()
    cases: Sequence[Mapping[str, Any]] = ()
    holds: Sequence[str] = field(default=())
    key: str | None = None
    rotations: Sequence[Mapping[str, str]] = ()
    note: str = ""


def ledger_from(
    *,
    exported_ms: int,
    cases: Iterable[tuple[ErasureCase, Mapping[str, Any]]],
    erasures: Iterable[tuple[Erasure, Mapping[SegmentId, Sequence[Range]]]],
    holds: Iterable[str],
    key: str | None,
    rotations: Iterable[Mapping[str, str]],
) -> Ledger:
    """The ledger of what a store has: cases with their subjects, and erasures that are done with the blanked ranges.

    A case that waits for approval was never opened, so it is left out.
    """
    return Ledger(
        exported_ms=exported_ms,
        cases=[_case_fields(item, subject) for item, subject in cases if item.state != "requested"],
        erasures=[
            LedgerErasure(
                erasure=item.erasure,
                stream=StreamName.parse(item.stream),
                who=item.asked["who"],
                why=item.asked["why"],
                sha256=item.receipt["sha256"],
                ranges=ranges,
            )
            for item, ranges in erasures
            if item.receipt is not None
        ],
        holds=sorted(holds),
        key=key,
        rotations=list(rotations),
    )


def held_in(holds: Iterable[HoldInfo]) -> list[str]:
    """The ids of the holds that a ledger lists. Nothing is erased in the store's own scope, so its holds are left out:
    who may export a ledger may not see all of them."""
    return [item.id for item in holds if item.scope != SYSTEM_SCOPE]


def _case_fields(item: ErasureCase, subject: Mapping[str, Any]) -> dict[str, Any]:
    ended = None if item.ended is None else {name: getattr(item.ended, name) for name in ("who", "why", "at_ms")}
    given = {name: getattr(item, name) for name in ("case", "who", "why", "opened_ms", "due_ms", "state")}
    return {**given, "targets": list(item.targets), "subject": dict(subject), "ended": ended}


def key_digest(key: bytes) -> str:
    """Identifies the key of a store without revealing it."""
    return hashlib.sha256(b"erasure.key of penstock\n" + key).hexdigest()


def _body(ledger: Ledger) -> list[bytes]:
    head = {
        "penstock": LEDGER,
        "format": FORMAT,
        "exported_ms": ledger.exported_ms,
        "holds": list(ledger.holds),
        "key": ledger.key,
        "rotations": list(ledger.rotations),
    }
    lines = [canonical(head)]
    lines += [canonical({"kind": "erasure", **item.fields()}) for item in ledger.erasures]
    return lines + [canonical({"kind": "case", **item}) for item in ledger.cases]


def signed_text(ledger: Ledger, origin: str) -> str:
    """What the key of the log ``origin`` signs: the number and the digest of all lines but the last."""
    lines = _body(ledger)
    return ledger_text(origin, len(lines), bytes.fromhex(_digest(lines)))


def ledger_digest(ledger: Ledger) -> str:
    """SHA-256 of all lines but the last, in hex."""
    return _digest(_body(ledger))


def ledger_lines(ledger: Ledger) -> list[bytes]:
    """The lines of the file, without line feeds. The last one holds the digest of those before it, and its signature."""
    lines = _body(ledger)
    end = {"kind": "end", "lines": len(lines), "sha256": _digest(lines), "note": ledger.note}
    return [*lines, canonical(end)]


def ledger_of(lines: Sequence[bytes]) -> Ledger:
    """Inverse of ``ledger_lines``. Raises CorruptDataError, VersionTooNewError."""
    try:
        head, *rest = [json.loads(line) for line in lines]
        if head["penstock"] != LEDGER:
            raise CorruptDataError("this is not a ledger of erasures", kind=str(head["penstock"])[:40])
        if int(head["format"]) > FORMAT:
            raise VersionTooNewError("ledger of erasures was written by a newer version", version=head["format"])
        end = rest.pop()
        if end.get("kind") != "end" or end["sha256"] != _digest(lines[:-1]):
            raise CorruptDataError("ledger of erasures is incomplete or was changed", lines=len(lines))
        ledger = Ledger(
            exported_ms=int(head["exported_ms"]),
            holds=[str(item) for item in head["holds"]],
            key=head["key"],
            rotations=[{name: str(item[name]) for name in ("old", "new", "signature")} for item in head["rotations"]],
            note=str(end["note"]),
            erasures=[LedgerErasure.of(item) for item in rest if item["kind"] == "erasure"],
            cases=[_case_of(item) for item in rest if item["kind"] == "case"],
        )
        if ledger_lines(ledger) != list(lines):
            raise CorruptDataError(
                "ledger of erasures is not in the form that a store writes; export it again", lines=len(lines)
            )
        return ledger
    except (ValueError, LookupError, TypeError, AttributeError, binascii.Error, RecursionError) as error:
        raise CorruptDataError("ledger of erasures cannot be read", reason=str(error)[:80]) from error


_CASE_FIELDS = ("case", "targets", "subject", "who", "why", "opened_ms", "due_ms", "state", "ended")


def _case_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in _CASE_FIELDS}


def _digest(lines: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line + b"\n")
    return digest.hexdigest()


def kept_in(ranges: Sequence[Range], length: int) -> list[Range]:
    """The ranges that an older copy of the segment has, which ends at ``length``. A segment only grows, so the copy has
    the same bytes up to there, and may have other bytes after it. If an event took several appends, the copy may have
    only its beginning."""
    return [(start, min(end, length)) for start, end in ranges if start < length]
