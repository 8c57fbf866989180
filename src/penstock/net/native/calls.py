"""The calls that our servers answer in addition to Pravega's protocols."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Protocol, get_type_hints

from penstock.codec.values import Call
from penstock.model.names import StreamName
from penstock.model.retention import PolicyTarget
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.chunks import LeasedChunks
from penstock.ports.data.erasing import Erasing
from penstock.ports.data.imports import ChunkImports
from penstock.ports.data.segments import Segments
from penstock.ports.data.space import Space
from penstock.ports.integrity import Scrubbable

SERVICE = "penstock.v1.Native"
"""The name of the gRPC service; a call is ``/penstock.v1.Native/<name of the call>``."""

REQUEST_BYTES_MAX = 4 << 20
REPLY_BYTES_MAX = 64 << 20
"""Bounds of one call over gRPC. Both sides refuse larger messages before sending them: gRPC would answer with a code
that means "try again"."""

SEGMENTS = "segments"
STORE = "store"
OVER_THE_WIRE = frozenset(f"transactions.{name}" for name in ("create", "ping", "commit", "abort", "status"))
"""Calls that are also answered on connections to the segment store, because small transactions wait for them.

A gRPC call costs each side about 0.4 ms of CPU, whatever it does. Over an existing connection it costs a tenth of that.
"""

MADE_ONCE = frozenset({"retention.undo", "retention.undo_last", "evidence.rotate_key"})
"""Calls that are not repeated when their answer is lost: each repetition may undo another truncation, or
replace another key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """The server that answers: its version, the id of the store, and the names of the calls that it supports."""

    version: str
    store_id: str
    calls: Sequence[str]


class About(Protocol):
    """What a server reports about itself."""

    async def info(self) -> StoreInfo: ...

    async def token(self, stream: StreamName) -> str:
        """The caller's token for the segments of the stream; empty if they need none. Raises PermissionDeniedError."""
        ...

    async def plan(self, targets: Sequence[PolicyTarget], action: str, valid_s: int) -> str:
        """A token for the tasks of a plan; empty if callers need no identity. It allows ``action``, read or write, on the
        streams, and on what the caller may do so in the scopes or (None) the store, for ``valid_s`` seconds.

        Raises InvalidArgumentError, PermissionDeniedError.
        """
        ...

    async def renew(self, valid_s: int) -> str:
        """The plan token that the caller presents, valid for ``valid_s`` seconds from now, but not for more than a day after
        the plan. Raises InvalidArgumentError: the caller presents another credential."""
        ...


@cache
def control_calls() -> Mapping[str, Mapping[str, Call]]:
    """All calls of the control plane, by subject and name."""
    subjects = {name: item for name, item in inspect.getmembers(ControlPlane) if isinstance(item, property)}
    return {
        subject: {
            name: Call(f"{subject}.{name}", declared)
            for name, declared in inspect.getmembers(get_type_hints(item.fget)["return"], inspect.isfunction)
            if not name.startswith("_")
        }
        for subject, item in subjects.items()
    }


@cache
def segment_calls() -> Mapping[str, Call]:
    """Calls of the segment store that Pravega's wire protocol has no command for, by name."""
    declared = (
        Segments.infos,
        Segments.count_events,
        LeasedChunks.chunk_ranges,
        LeasedChunks.lease_chunks,
        LeasedChunks.release_lease,
        LeasedChunks.finish_lease_part,
        Erasing.erased_ranges,
        Space.spaces,
        Space.disk,
        ChunkImports.grant_import,
        ChunkImports.adopt_chunks,
        Scrubbable.scrub,
    )
    return {call.__name__: Call(f"{SEGMENTS}.{call.__name__}", call) for call in declared}


@cache
def info_call() -> Call:
    return Call(f"{STORE}.info", About.info)


@cache
def token_calls() -> Mapping[str, Call]:
    """The calls that return tokens, by name."""
    return {item.__name__: Call(f"{STORE}.{item.__name__}", item) for item in (About.token, About.plan, About.renew)}


TOKENS_CAPABILITY = "DelegationTokens"
"""Listed among the names of ``store.info`` if commands to segments need tokens of ``store.token``."""
