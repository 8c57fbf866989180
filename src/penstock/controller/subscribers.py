"""Subscribers: reader groups whose acknowledged cuts let retention go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from penstock.codec.reader_metadata import SubscriberRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import changing
from penstock.controller.retention_cycle import load_subscribers
from penstock.controller.truncation import check_positions
from penstock.core.cut_order import Positions, at_or_after
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    GenerationMismatchError,
    InvalidCutError,
    StreamNotFoundError,
    SubscriberNotFoundError,
)
from penstock.model.names import StreamName


class Subscribers:
    """Subscriptions of all streams. ``published`` is told each stream whose data was acknowledged further."""

    def __init__(self, ctx: Context, published: Callable[[StreamName], None]) -> None:
        self._ctx = ctx
        self._published = published

    async def names(self, name: StreamName) -> Sequence[str]:
        """As ``scope/group``, sorted."""
        view = await self._ctx.stream(name)
        return tuple(await load_subscribers(self._ctx, view))

    async def check_start(self, name: StreamName, cut: StreamCut | None) -> None:
        """Raises ScopeNotFoundError, StreamNotFoundError, InvalidCutError."""
        view = await self._ctx.stream(name)
        if cut is not None and not cut.is_unbounded:
            check_positions(view, await self._ctx.histories.of(view), cut)

    async def join(self, name: StreamName, group: str, *, group_id: UUID, generation: int, start: Positions) -> None:
        """Register the group, or raise its generation; what it has acknowledged stays.

        A start with positions is its first acknowledged cut, from this very step on. A stream that is gone is left out: no
        data of it is left to hold.
        """

        async def attempt() -> bool:
            view = await self._ctx.stream(name)
            found = await self._ctx.metadata.get(keys.subscriber(name, group), SubscriberRecord)
            known = found.value
            if known is not None and known.incarnation == view.record.incarnation and known.group_id == group_id:
                if known.generation < generation:
                    await self._ctx.metadata.put(found.put(replace(known, generation=generation)))
                return False
            record = SubscriberRecord(
                group_id=group_id,
                generation=generation,
                incarnation=view.record.incarnation,
                cut=dict(start) or None,
                updated_ms=self._ctx.clock.now_ms(),
            )
            await self._ctx.metadata.put(found.put(record))
            return bool(start)

        try:
            moved = await changing(attempt)
        except StreamNotFoundError:
            return
        if moved:
            self._published(name)

    async def leave(self, name: StreamName, group: str, *, group_id: UUID, generation: int) -> None:
        """Forget the subscription, unless it belongs to a later generation, or to a later group of the same name."""

        async def attempt() -> None:
            found = await self._ctx.metadata.get(keys.subscriber(name, group), SubscriberRecord)
            if found.value is None or found.value.group_id != group_id or found.value.generation > generation:
                return
            await self._ctx.metadata.remove(found.remove())

        await changing(attempt)
        self._published(name)

    async def publish(self, subscriber: str, *, group_id: UUID | None, generation: int | None, cut: StreamCut) -> None:
        """Acknowledge all data before ``cut``. None for id or generation: not compared.

        Raises, in this order: ScopeNotFoundError and StreamNotFoundError, SubscriberNotFoundError,
        GenerationMismatchError, InvalidCutError (not a cut, or behind the last one at some key).
        """
        await changing(lambda: self._publish(subscriber, group_id, generation, cut))
        self._published(cut.stream)
        self._ctx.telemetry.add("subscriber_cuts")

    async def _publish(self, subscriber: str, group_id: UUID | None, generation: int | None, cut: StreamCut) -> None:
        ctx = self._ctx
        view = await ctx.stream(cut.stream)
        found = await ctx.metadata.get(keys.subscriber(cut.stream, subscriber), SubscriberRecord)
        known = found.value
        if (
            known is None
            or known.incarnation != view.record.incarnation
            or (group_id is not None and group_id != known.group_id)
        ):
            raise SubscriberNotFoundError(
                "reader group does not subscribe to the stream", subscriber=subscriber, stream=str(cut.stream)
            )
        if generation is not None and generation != known.generation:
            raise GenerationMismatchError(
                "reader group was changed since", subscriber=subscriber, generation=generation, now=known.generation
            )
        history = await ctx.histories.of(view)
        check_positions(view, history, cut)
        if known.cut is not None and not at_or_after(history, cut.positions, known.cut):
            raise InvalidCutError(
                "cut lies behind what the subscriber has acknowledged",
                subscriber=subscriber,
                acknowledged=dict(known.cut),
                cut=dict(cut.positions),
            )
        record = replace(known, cut=dict(cut.positions), updated_ms=ctx.clock.now_ms())
        await ctx.metadata.put(found.put(record))
