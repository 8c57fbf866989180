"""Chunks that no row names: find the names that rows hold, and decide whose bytes an orphan may hold."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.store import rows as records
from penstock.core.segments.garbage import parse_chunk_name, parse_import_name
from penstock.model.errors import CorruptDataError
from penstock.segmentstore.repair.chunk_gaps import segments_with_gaps
from penstock.segmentstore.state import ContainerState
from penstock.segmentstore.tiering.leases import Leases

_PAGE = 1000  # rows of one scan, which bounds the memory of a page


async def named_chunks(state: ContainerState) -> tuple[set[str], CorruptDataError | None]:
    """Names in the chunk rows, and why they may be incomplete. Use them for lookups only; their order is not defined.

    A chunk that a damaged row names, or one of a segment that was set aside, looks like an orphan.
    """
    start, end = records.range_of(records.prefix(records.TAG_CHUNK, state.index))
    named: set[str] = set()
    damaged: list[bytes] = []
    while True:
        page: Sequence[tuple[bytes, bytes]] = await state.rows.scan((start, end), limit=_PAGE, damaged=damaged)
        named.update(records.decode_chunk(value).name for _, value in page)
        if len(page) < _PAGE:
            break
        start = page[-1][0] + b"\0"
    if damaged or state.segments.aside:
        key = damaged[0].hex() if damaged else None
        return named, CorruptDataError(
            "orphaned chunks cannot be identified, because metadata is damaged",
            container=state.index,
            key=key,
        )
    return named, None


async def lost_rows(state: ContainerState) -> CorruptDataError | None:
    """Why a chunk that no row names must perhaps stay: rows of chunks are missing, and they may have named it. SQLite
    does not notice a lost row."""
    found = await segments_with_gaps(state.rows, state.index)
    if not found:
        return None
    return CorruptDataError(
        "orphaned chunks cannot be identified, because rows of chunks are missing",
        container=state.index,
        uid=f"{found[0]:x}",
        segments=len(found),
    )


async def may_hold(state: ContainerState, leases: Leases, orphan: str, segment: str, uid: int | None) -> bool:
    """Whether an orphan may hold bytes of the segment: it belongs to the segment, or to a deleted one that may have merged
    into it. If only that other one is leased, there was no merge, because a merge moves leases along. ``uid`` None: the
    segment was deleted.
    The rows of a segment that was set aside are still there, though it may have been merged.
    """
    name = parse_chunk_name(orphan) or parse_import_name(orphan)
    if name is None or name.uid == uid:
        return True
    if name.uid in state.segments.by_uid:
        return False
    damaged: list[bytes] = []
    key = records.uid_key(records.TAG_SEGMENT, state.index, name.uid)
    (row,) = await state.rows.get_many([key], damaged=damaged)
    if (row is not None or damaged) and name.uid not in state.segments.aside:
        return False
    if uid is None:
        return leases.may_hold(name.uid, segment)
    held = set(leases)
    return all((lease, uid) in held for lease, leased in held if leased == name.uid)
