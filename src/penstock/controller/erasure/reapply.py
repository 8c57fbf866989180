"""Erase again, in a store from an older copy, what the original has erased since. Called before the first read.

Positions come first: the copy has the same segments, as far as they reach. Then each case is searched by its matcher,
because a transaction that was decided before the copy may have been merged elsewhere. Holds that had ended in the
original do not count. All steps can be repeated. Source: docs/design/0057-erasure-ledger.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from penstock.codec.control.cases import CaseRecord, CaseState
from penstock.codec.control.erasures import ErasureMarkRecord, ErasurePartRecord, ErasureRecord, ErasureState
from penstock.codec.events import HEADER_BYTES
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.erasure.case_search import Case, CaseSearch
from penstock.controller.erasure.deferral import judge
from penstock.controller.erasure.erasures import Erasures
from penstock.controller.erasure.subjects import ends_of, tables_of
from penstock.controller.metadata import Stored, overwrite
from penstock.controller.stream_view import StreamView
from penstock.core.cases.case import matcher_of, with_key
from penstock.core.cases.ledger import Ledger, LedgerErasure, kept_in, key_digest
from penstock.core.segments.erasure_receipt import positions_digest, request_digest
from penstock.model.errors import ConflictError, InvalidArgumentError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass

log = logging.getLogger(__name__)

_RUN = "ledger"
_POLL_S = 0.02
_POLL_MAX_S = 1.0


@dataclass(slots=True, kw_only=True)
class Reapplied:
    """What was erased again. ``unsearched``: cases whose values the ledger lacks."""

    erasures: int = 0
    events: int = 0
    cases: int = 0
    unsearched: int = 0


class Reapply:
    """Applies one ledger."""

    def __init__(self, ctx: Context, erasures: Erasures, search: CaseSearch, ledger: Ledger) -> None:
        self._ctx = ctx
        self._erasures = erasures
        self._search = search
        self._ledger = ledger
        self._done = Reapplied()

    async def run(self, views: Mapping[str, Sequence[StreamView]], waiting: Set[str]) -> Reapplied:
        """Apply it. ``views``: the streams that each case concerns. ``waiting``: cases about deleted streams of this copy
        that can be restored; they stay open.

        Raises InvalidArgumentError: its digests were made with another key. And what erasing raises.
        """
        self._check_key()
        for item in self._ledger.erasures:
            await self._erase(item)
        for fields in self._ledger.cases:
            await self._case(fields, views.get(fields["case"], ()), is_waiting=fields["case"] in waiting)
        self._ctx.audit.soon()
        return self._done

    def _check_key(self) -> None:
        key = self._ctx.settings.erasure_key
        needed = any("digests" in item["subject"] for item in self._ledger.cases)
        if needed and (key is None or key_digest(key) != self._ledger.key):
            raise InvalidArgumentError(
                "digests of the ledger were made with the key of another store; copy erasure.key of the original",
                key=None if key is None else key_digest(key)[:16],
                needed=None if self._ledger.key is None else self._ledger.key[:16],
            )

    async def _erase(self, item: LedgerErasure) -> None:
        """Perform an erasure again, as far as this copy has its events."""
        ctx = self._ctx
        own = (await ctx.metadata.get(keys.erasure(item.erasure), ErasureRecord)).value
        if own is not None and own.receipt is not None and own.receipt.get("sha256") == item.sha256:
            return  # The copy was made after it.
        names = {segment: segment_name(item.stream, segment) for segment in item.ranges}
        infos = await ctx.segments.infos(list(names.values()))
        parts = []
        for segment, ranges in sorted(item.ranges.items()):
            info = infos.get(names[segment])
            kept = [] if info is None else kept_in(ranges, info.length)
            if kept:
                parts.append(ErasurePartRecord(segment=segment, ranges=kept, events=len(kept)))
        if parts:
            looked_for = {"by": "ledger", "erasure": item.erasure, "receipt": item.sha256}
            asked = {"erasure": item.again, "who": item.who, "why": item.why, "looked_for": looked_for}
            await self._perform(item.stream, asked, parts)

    async def _case(self, fields: Mapping[str, Any], views: Sequence[StreamView], *, is_waiting: bool) -> None:
        """Erase what matches a case, then keep the case: ended as in the original, or else open."""
        ctx = self._ctx
        if fields["state"] == CaseState.WITHDRAWN.value:
            return
        if "left_out" in fields["subject"]:
            self._done.unsearched += 1
            log.warning("ledger lacks the values of a case: only positions were erased", extra={"case": fields["case"]})
            return
        record = CaseRecord(
            **{name: fields[name] for name in ("targets", "subject", "who", "why", "opened_ms", "due_ms")}
        )
        record = with_key(record, ctx.settings.erasure_key)
        case = Case(id=fields["case"], record=record, matcher=matcher_of(record.subject, ctx.settings.erasure_key))
        held = [await self._erase_matches(case, view) for view in views]
        if fields["state"] == CaseState.CLOSED.value and not any(held) and not is_waiting:
            record = replace(record, state=CaseState.CLOSED, ended=fields["ended"])
        found = await ctx.metadata.get(keys.case(case.id), CaseRecord)
        if found.value is None or not (found.value.state.is_final or record == found.value):
            await ctx.metadata.put(found.put(record))
            self._done.cases += 1

    async def _erase_matches(self, case: Case, view: StreamView) -> bool:
        """Erase the events of the stream that match. Returns whether a hold of the original keeps some of them."""
        number = 0
        while True:
            found = await self._search.find(case.matcher, view)
            hits = found.positions
            if not hits:
                await self._search.note_skipped(case.id, view, found.skipped)
                return False
            parts = [await self._erasures.part_of(view, segment, offsets) for segment, offsets in sorted(hits.items())]
            judgement = await judge(self._ctx, view, ends_of(parts))
            if any(hold.id in self._ledger.holds for hold in judgement.holds):
                return True
            number += 1
            erasure = await self._free_id(case.id, view.name, number)
            looked_for = {**case.matcher.looked_for(), "case": case.id, "ledger": self._ledger.exported_ms}
            asked = {"erasure": erasure, "who": case.record.who, "why": case.record.why, "looked_for": looked_for}
            await self._perform(view.name, asked, parts)

    async def _free_id(self, case: str, stream: StreamName, number: int) -> str:
        """An id that no erasure has. A crash leaves a decided one, which goes on by itself."""
        while True:
            erasure = LedgerErasure(
                erasure=f"{case}.{number}",
                stream=stream,
                who="",
                why="",
                sha256=str(self._ledger.exported_ms),
                ranges={},
            ).again
            found = await self._ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
            if found.value is None:
                return erasure
            number += 1

    async def _perform(self, stream: StreamName, asked: Mapping[str, Any], parts: Sequence[ErasurePartRecord]) -> None:
        """Decide an erasure without asking holds, and wait until it is done."""
        ctx, erasure = self._ctx, str(asked["erasure"])
        found: Stored[ErasureRecord] = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        if found.value is None:
            view = await ctx.streams.find(stream)
            offsets: dict[SegmentId, list[int]] = {
                part.segment: [start - HEADER_BYTES for start, _ in part.ranges] for part in parts
            }
            count, digest = positions_digest(offsets)
            sha256 = request_digest(str(stream), asked, digest)
            record = ErasureRecord(
                stream=str(stream),
                incarnation=0 if view is None else view.record.incarnation,
                state=ErasureState.ASKED,
                asked=asked,
                asked_ms=ctx.clock.now_ms(),
                run=_RUN,
                known_tables=[] if view is None else await tables_of(ctx, view),
                request={"events": count, "positions_sha256": digest, "sha256": sha256},
            )
            for part in parts:
                await ctx.metadata.put(overwrite(keys.erasure_part(erasure, _RUN, 0, part.segment), part))
            await ctx.metadata.put(found.put(record), overwrite(keys.erasure_mark(erasure), ErasureMarkRecord()))
            self._done.erasures += 1
            self._done.events += count
        await self._until_done(erasure)

    async def _until_done(self, erasure: str) -> None:
        pause_s = _POLL_S
        while True:
            state = await self._erasures.get(erasure)
            if state.receipt is not None:
                return
            if state.state != "asked":
                raise ConflictError("an erasure of the ledger was changed", erasure=erasure, state=state.state)
            await asyncio.sleep(pause_s)
            pause_s = min(_POLL_MAX_S, 1.5 * pause_s)
