"""What a rebuild from tier 2 recovered, and what it did not. Source: docs/design/0015-integrity.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from penstock.app.integrity.reconcile import Reconciled
from penstock.codec.store import rows as records
from penstock.model.damage import Damage, DamageKind
from penstock.model.values.dataclass import dataclass
from penstock.segmentstore.repair.rebuild import ContainerCatalogue, RebuiltSegment
from penstock.segmentstore.repair.rebuild_aside import RestoredAside

Progress = Callable[[Mapping[str, int]], None]


@dataclass(slots=True, kw_only=True)
class RebuildReport:
    """What was recovered, and what was not. Damaged data was copied unchanged: the new store refuses to read it too."""

    place: str
    data: str
    containers: list[dict[str, Any]] = field(default_factory=list)
    segments: int = 0
    tables: int = 0
    chunks: int = 0
    bytes: int = 0
    events: int = 0
    lost: list[dict[str, Any]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    unnamed_chunks: list[str] = field(default_factory=list)
    streams: Reconciled = field(default_factory=Reconciled)
    log: list[dict[str, Any]] = field(default_factory=list)
    """Frames and operations of the source's own log that were not applied, for each container. A start applies them."""
    restored: list[str] = field(default_factory=list)
    """Segments that were set aside and that the rebuild restored in full."""
    workers: int = 1
    worker: int | None = None
    """The worker that was repaired; None: the whole store was rebuilt."""
    log_kept: bool = False
    """Whether the log of the worker continues the rows, so that nothing is lost."""
    replaced: str | None = None
    """Where the replaced files of the worker are."""
    held: dict[str, int] = field(default_factory=dict)
    """Readable bytes of each segment of events that was recovered."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is known to be missing. The contents of a lost log are never known."""
        found = self.streams
        is_short = any(item["missing_bytes"] for item in found.streams)
        is_partial = bool(found.made or found.unreachable or found.unreadable or is_short)
        return not (self.lost or self.damage or self.unnamed_chunks or self.log or is_partial)

    def note_container(self, state: ContainerCatalogue) -> None:
        """Add what was read of a container's catalogue."""
        self.containers.append(
            {
                "container": state.container,
                "recovered": state.applied is not None,
                "as_of_ms": state.time_ms,
                "batch": state.applied,
                "lost_batches": state.lost_batches,
            }
        )
        self.damage += [
            Damage(kind=DamageKind.CATALOGUE, place=place, why=why, container=state.container)
            for place, why in state.damage
        ]

    def note_segment(self, segment: RebuiltSegment) -> None:
        """Add a segment, and what of it is lost."""
        if segment.record.kind:
            self.tables += 1
            return
        held = segment.record.length - segment.record.start_offset
        self.segments += 1
        self.bytes += held
        self.events += segment.record.event_count
        self.held[segment.name] = held
        if segment.lost_bytes:
            self.lost.append(
                {
                    "segment": segment.name,
                    "start": segment.record.length,
                    "bytes": segment.lost_bytes,
                    "events": segment.lost_events,
                    "writers_set_back": segment.writers_set_back,
                }
            )

    def note_aside(self, container: int, found: RestoredAside) -> None:
        """Add the segments that were set aside."""
        self.restored += found.restored
        for uid, name, why in found.failed:
            self.damage.append(
                Damage(
                    kind=DamageKind.ROW,
                    place=records.aside_key(container, uid).hex(),
                    why=f"the segment was set aside, and some of the log's changes to it are lost: {why}",
                    container=container,
                    segment=name,
                    fields={"uid": f"{uid:x}"},
                )
            )

    def unknown(self) -> list[str]:
        """Sentences about losses that cannot be determined."""
        if self.log_kept:
            return []
        times = [item["as_of_ms"] for item in self.containers if item["as_of_ms"] is not None]
        said = [
            "what was written after the catalogue's last entry was only in the log, and tier 2 does not show how much: "
            "log_not_applied counts it only if the source is a data directory that still has its log, and could be read"
        ]
        if times and min(times) != max(times):
            said.append(
                f"parts of the store are up to {(max(times) - min(times)) / 1000:.1f} s apart: a transaction that committed "
                "in between can be present in some segments and missing in others"
            )
        if self.unnamed_chunks:
            said.append(
                "chunks that no entry names are garbage or the last ones written: they do not show their segment"
            )
        return said

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "place": self.place,
            "data": self.data,
            "workers": self.workers,
            **({} if self.worker is None else {"worker": self.worker, "log_kept": self.log_kept}),
            **({} if self.replaced is None else {"replaced": self.replaced}),
            "complete": self.is_complete,
            "containers": self.containers,
            "streams": self.streams.streams,
            "segments": self.segments,
            "tables": self.tables,
            "chunks": self.chunks,
            "bytes": self.bytes,
            "events": self.events,
            "lost": self.lost,
            "damage": [item.as_json() for item in self.damage],
            "log_not_applied": self.log,
            "made_anew": self.streams.made,
            "unreachable": self.streams.unreachable,
            "unreadable": self.streams.unreadable,
            "unnamed_chunks": self.unnamed_chunks,
            "restored": self.restored,
            "unknown": self.unknown(),
        }
