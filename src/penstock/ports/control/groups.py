"""Reader groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol
from uuid import UUID

from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderGroupConfig:
    """A reader group. An unbounded start cut is the head, an unbounded end cut none."""

    scope: str
    name: str
    id: UUID
    generation: int = 0
    retention: ReaderGroupRetention = ReaderGroupRetention.NONE
    start_cuts: Mapping[StreamName, StreamCut] = field(default_factory=dict)
    end_cuts: Mapping[StreamName, StreamCut] = field(default_factory=dict)
    refresh_ms: int = 3000
    checkpoint_interval_ms: int = 30_000
    max_outstanding_checkpoints: int = 3
    rollover_bytes: int = 0

    @property
    def full_name(self) -> str:
        return f"{self.scope}/{self.name}"


class ReaderGroups(Protocol):
    """Reader groups of a scope."""

    async def create(self, config: ReaderGroupConfig) -> ReaderGroupConfig:
        """Create, or return the stored one unchanged. Subscribers are registered with all streams of the start cuts. This
        also happens if the group is stored but a rule or a person has ended its subscription.

        A start cut given explicitly (or, from our own client, always) is published as the first acknowledged cut.
        """
        ...

    async def update(self, config: ReaderGroupConfig) -> int:
        """Replace; returns the new generation. Raises ReaderGroupNotFoundError, GenerationMismatchError."""
        ...

    async def get(self, scope: str, name: str) -> ReaderGroupConfig: ...

    async def delete(self, scope: str, name: str, *, group_id: UUID | None = None) -> None: ...

    async def list(self, scope: str) -> Sequence[str]: ...
