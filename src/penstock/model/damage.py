"""Damage to stored data: what it is, where, and what it affects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from penstock.model.values.dataclass import dataclass


class DamageKind(Enum):
    """What is damaged. The values are part of the formats that tools print."""

    BLOCK = "block"
    """Bytes of a chunk fail their checksum, or are not there: reads of them are refused."""
    CHUNK = "chunk"
    """A chunk that a segment names is missing."""
    INDEX = "index"
    """A chunk's sidecar fails its checksum, is missing, or contradicts the metadata. Reads do not need it."""
    ROW = "row"
    """A row of the metadata fails its checksum or contradicts others."""
    PAGE = "page"
    """The file of the metadata is damaged as a whole."""
    LOG = "log"
    """The write-ahead log has lost what was durable."""
    CATALOGUE = "catalogue"
    """The catalogue of tier 2 is damaged: the store runs, but tier 2 alone would not give all of it back."""
    DIRECTORY = "directory"
    """A file of the data directory itself cannot be read."""
    SECRET = "secret"
    """A file with a key or with users is missing, damaged, or readable by others. No data is affected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One finding.

    ``place`` names the file, object or row. ``segment`` and ``start <= offset < end`` say which bytes of which segment cannot
    be read because of it; None if no bytes are affected, or it is unknown which.
    """

    kind: DamageKind
    place: str
    why: str
    container: int | None = None
    segment: str | None = None
    start: int | None = None
    end: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values; None fields are left out."""
        found: dict[str, Any] = {"kind": self.kind.value, "place": self.place, "why": self.why}
        for name in ("container", "segment", "start", "end"):
            value = getattr(self, name)
            if value is not None:
                found[name] = value
        return found | {name: _plain(value) for name, value in self.fields.items()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Damage:
        """The inverse of ``as_json``."""
        known = {name: found.get(name) for name in ("container", "segment", "start", "end")}
        rest = {name: value for name, value in found.items() if name not in (*known, "kind", "place", "why")}
        return cls(kind=DamageKind(found["kind"]), place=found["place"], why=found["why"], fields=rest, **known)


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
