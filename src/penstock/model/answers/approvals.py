"""Requests for the approval of a second identity, and their states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

__all__ = ["ApprovalRequest"]


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """An action that needs approval, as it was requested.

    ``action``: ``delete``, ``truncate``, ``release``, ``shorten`` or ``require``; ``target``: ``scope/stream``, a scope,
    or empty for the server. ``arguments``: of the action, exactly what an approval performs. ``digest``: SHA-256 of action,
    target, arguments, and the state that they depend on. ``state``: ``requested``, ``approved`` (it is about to be
    performed), ``executed``, ``failed``, ``refused``, ``withdrawn`` or ``expired``. ``requested_by`` and ``decided_by`` are
    verified identities; ``why`` and ``decided_why`` are their statements. Times are milliseconds since the Unix epoch.
    ``failure``: why it failed, else empty.
    """

    id: str
    action: str
    target: str
    arguments: Mapping[str, Any]
    digest: str
    state: str
    requested_by: str
    why: str
    requested_ms: int
    expires_ms: int
    decided_by: str
    decided_why: str
    decided_ms: int | None
    failure: str
