"""Holds: data that no rule or call may delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.retention import HoldInfo, PolicyTarget


class Holds(Protocol):
    """Holds on streams and scopes."""

    async def add(
        self,
        target: StreamName | str,
        *,
        owner: str,
        reason: str,
        until_ms: int | None = None,
        cut: StreamCut | None = None,
        hold_id: str | None = None,
    ) -> HoldInfo:
        """Place a hold on a stream or a whole scope. In force when this returns. Repeating the same id and content does
        nothing. Raises AlreadyExistsError, InvalidArgumentError, InvalidCutError."""
        ...

    async def list(self, target: PolicyTarget = None) -> Sequence[HoldInfo]:
        """Holds in force on a stream (its scope's included), in a scope, or all; sorted by scope, stream, id."""
        ...

    async def release(self, hold_id: str, *, owner: str) -> HoldInfo:
        """Lift a hold; the audit records who did. Raises NotFoundError."""
        ...

    async def extend(self, hold_id: str, *, owner: str, until_ms: int | None = None) -> HoldInfo:
        """Let a hold end later, or (None) only when it is released. No moment passes in which the data is not held. The
        audit records the new end and ``owner``. Repeating the call does nothing. Raises NotFoundError (no such hold is
        in force), InvalidArgumentError (the hold would end earlier)."""
        ...
