"""All events of a person: what an erasure would find, for an answer to a request for access."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.client.store import AsyncStore
from penstock.core.cases.case import EVERYTHING, concerns
from penstock.core.cases.matching import Contains, JsonField, check_can_match
from penstock.core.segments.erasure_receipt import NOT_SEEN
from penstock.model.errors import ScopeNotFoundError, StreamNotFoundError, UnsearchableEventError
from penstock.model.names import StreamName
from penstock.model.values.dataclass import dataclass


@dataclass(slots=True, kw_only=True)
class SubjectExport:
    """What an export found. ``erased``: events that an erasure with the same search has blanked. ``unsearched``: events
    that cannot be searched, because they are nested too deeply. ``deleted``: deleted streams of the targets that can be
    restored; they were not searched."""

    streams: int = 0
    events: int = 0
    erased: int = 0
    unsearched: int = 0
    deleted: int = 0
    bytes: int = 0


async def export_subject(
    store: AsyncStore,
    targets: Sequence[str],
    match: JsonField | Contains,
    write: Callable[[Mapping[str, Any]], None],
) -> SubjectExport:
    """Call ``write`` with each event of the targets that matches, from the head to the current tail of each stream.

    A row has ``stream``, ``segment``, ``offset``, ``appended_ms`` (None: not known), ``event`` (bytes; None: erased) and
    ``erasure`` (None: not erased). Erased events are those that an erasure with the same search has blanked; their
    values are gone, so other erasures cannot be compared.

    Raises ScopeNotFoundError, StreamNotFoundError (also if the targets contain no stream), InvalidArgumentError (the
    search can find nothing), and what reading raises.
    """
    check_can_match(match)
    found = SubjectExport()
    found.deleted = sum(concerns(targets, item.stream) for item in await store.deleted_streams())
    for name in await _streams(store, targets):
        found.streams += 1
        stream = store.stream(name)
        async with stream.reader(until_tail=True, append_times=True) as reader:
            matches = match.matcher()
            async for event in reader:
                try:
                    is_match = matches(event.data)
                except UnsearchableEventError:
                    found.unsearched += 1
                    continue
                if is_match:
                    found.events += 1
                    found.bytes += len(event.data)
                    write(_row(name, event.segment, event.offset, event.appended_ms, event.data, None))
        for erasure, offsets in (await _erased(store, name, match)).items():
            for segment, offset in offsets:
                found.erased += 1
                write(_row(name, segment, offset, None, None, erasure))
    return found


def _row(
    name: StreamName, segment: int, offset: int, appended_ms: int | None, event: bytes | None, erasure: str | None
) -> dict[str, Any]:
    return {
        "stream": str(name),
        "segment": segment,
        "offset": offset,
        "appended_ms": appended_ms,
        "event": event,
        "erasure": erasure,
    }


async def _streams(store: AsyncStore, targets: Sequence[str]) -> list[StreamName]:
    """The streams that the targets cover, sorted. Raises ScopeNotFoundError, StreamNotFoundError: an empty answer about a
    mistyped name would look like a complete one."""
    scopes = await store.scopes()
    every = [StreamName(scope, name) for scope in scopes for name in await store.streams(scope)]
    known = {EVERYTHING, *scopes, *map(str, every)}
    for target in targets:
        if target not in known:
            missing = StreamNotFoundError if "/" in target else ScopeNotFoundError
            raise missing("no such stream or scope; nothing was exported", target=target)
    found = sorted((name for name in every if concerns(targets, name)), key=str)
    if not found:
        raise StreamNotFoundError(
            "the targets contain no stream; nothing was exported", targets=" ".join(targets)[:120]
        )
    return found


async def _erased(
    store: AsyncStore, name: StreamName, match: JsonField | Contains
) -> Mapping[str, Sequence[tuple[int, int]]]:
    """Positions of events that erasures with the same search have blanked, by erasure."""
    wanted = {key: value for key, value in match.looked_for().items() if key != NOT_SEEN}
    erasures = store.erasures(name)
    found: dict[str, Sequence[tuple[int, int]]] = {}
    for item in await erasures.list():
        looked_for = item.asked.get("looked_for") or {}
        if item.receipt is not None and {key: looked_for.get(key) for key in wanted} == wanted:
            offsets = await erasures.offsets(item.erasure)
            found[item.erasure] = [(segment, offset) for segment, own in offsets.items() for offset in own]
    return found
