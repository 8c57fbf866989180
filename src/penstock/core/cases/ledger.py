"""The ledger: what was erased, kept outside of the store, so that a store from an older copy can erase it again.

A ledger is a file of JSON lines. Source: docs/formats/cases.md, docs/design/0057-erasure-ledger.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.codec.store.erased import decode_ranges, encode_ranges
from penstock.core.segments.erasure import Range
from penstock.core.segments.erasure_receipt import canonical
from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId

__all__ = ["Ledger", "LedgerErasure"]

FORMAT = 1


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
    ``ended``. ``key``: digest of the key of the digests in them."""

    exported_ms: int
    erasures: Sequence[LedgerErasure] = ()
    cases: Sequence[Mapping[str, Any]] = ()
    holds: Sequence[str] = field(default=())
    key: str | None = None


def key_digest(key: bytes) -> str:
    """Identifies the key of a store without revealing it."""
    return hashlib.sha256(b"erasure.key of penstock\n" + key).hexdigest()


def ledger_lines(ledger: Ledger) -> list[bytes]:
    """The lines of the file, without line feeds. The last one holds the digest of those before it."""
    head = {"ledger": FORMAT, "exported_ms": ledger.exported_ms, "holds": list(ledger.holds), "key": ledger.key}
    lines = [canonical(head)]
    lines += [canonical({"kind": "erasure", **item.fields()}) for item in ledger.erasures]
    lines += [canonical({"kind": "case", **item}) for item in ledger.cases]
    return [*lines, canonical({"kind": "end", "lines": len(lines), "sha256": _digest(lines)})]


def ledger_of(lines: Sequence[bytes]) -> Ledger:
    """Inverse of ``ledger_lines``. Raises CorruptDataError, VersionTooNewError."""
    try:
        head, *rest = [json.loads(line) for line in lines]
        if int(head["ledger"]) > FORMAT:
            raise VersionTooNewError("ledger of erasures was written by a newer version", version=head["ledger"])
        end = rest.pop()
        if end.get("kind") != "end" or end["sha256"] != _digest(lines[:-1]):
            raise CorruptDataError("ledger of erasures is incomplete or was changed", lines=len(lines))
        return Ledger(
            exported_ms=int(head["exported_ms"]),
            holds=[str(item) for item in head["holds"]],
            key=head["key"],
            erasures=[LedgerErasure.of(item) for item in rest if item["kind"] == "erasure"],
            cases=[_case_of(item) for item in rest if item["kind"] == "case"],
        )
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
    the same bytes up to there; behind it, it may have others."""
    return [item for item in ranges if item[1] <= length]
