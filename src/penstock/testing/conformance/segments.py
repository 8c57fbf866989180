"""Laws of ``ports.data.service.LocalSegmentService`` for the calls that retention uses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import accumulate
from uuid import UUID

from penstock.codec.events import frame_events
from penstock.model.errors import (
    InvalidArgumentError,
    PenstockError,
    QuotaExceededError,
    QuotaHeldError,
    SegmentNotFoundError,
    TruncatedError,
)
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.ports.data.segments import Append, Appended, SegmentInfo
from penstock.ports.data.service import LocalSegmentService, SegmentService
from penstock.testing.conformance import check
from penstock.testing.conformance.rates import RateLaws

STREAM = "scope/stream"
SEGMENT = f"{STREAM}/0.#epoch.0"
SECOND = f"{STREAM}/1.#epoch.0"
TRANSACTION = f"{SEGMENT}#transaction.{'a' * 32}"
_PATIENCE_S = 20.0


class SegmentLaws(RateLaws):
    """Subclass and implement ``open``."""

    def open(self) -> AbstractAsyncContextManager[LocalSegmentService]:
        """Reopen the same store. The first call of an instance finds it empty."""
        raise NotImplementedError

    # --- keeping ------------------------------------------------------------------------------------------

    async def law_kept_bytes_are_gone_until_they_are_restored(self) -> None:
        async with self.open() as store:
            await _fill(store, SEGMENT, b"0123456789")
            await store.truncate(SEGMENT, 4, keep=True)
            check(await _places(store) == (0, 4, 10), "the start moves, no space is freed")
            check(await _error(store.read(SEGMENT, 3, 10, wait=False)) is TruncatedError, "kept bytes cannot be read")
            check(await _text(store, 4) == b"456789", "the rest is there")
            await store.truncate(SEGMENT, 7, keep=True)
            check(await _places(store) == (0, 7, 10), "bytes kept earlier stay kept")
            check(await store.restore(SEGMENT, 5) == 5, "restore returns the start")
            check(await _places(store) == (0, 5, 10), "the restored start is returned")
            check(await _text(store, 5) == b"56789", "restored bytes are as they were")
            check(await store.restore(SEGMENT, 0) == 0, "all kept bytes are restored")
            check(await _places(store) == (None, 0, 10), "no bytes are kept")
            check(await _text(store, 0) == b"0123456789", "restored bytes are as they were")

    async def law_what_is_released_never_comes_back(self) -> None:
        async with self.open() as store:
            await _fill(store, SEGMENT, b"0123456789")
            await store.truncate(SEGMENT, 6, keep=True)
            await store.release(SEGMENT, 2)
            check(await _places(store) == (2, 6, 10), "the rest stays kept")
            check(await store.restore(SEGMENT, 0) == 2, "the start is the oldest kept byte")
            check(await _text(store, 2) == b"23456789", "restored bytes are as they were")
            await store.truncate(SEGMENT, 6, keep=True)
            await store.release(SEGMENT, 6)
            check(await _places(store) == (None, 6, 10), "nothing is kept")
            check(await store.restore(SEGMENT, 0) == 6, "there is nothing to restore")
            check(
                await _error(store.read(SEGMENT, 5, 1, wait=False)) is TruncatedError, "released bytes cannot be read"
            )

    async def law_truncation_without_keeping_takes_what_is_kept(self) -> None:
        async with self.open() as store:
            await _fill(store, SEGMENT, b"0123456789")
            await store.truncate(SEGMENT, 4, keep=True)
            await store.truncate(SEGMENT, 4)
            await store.truncate(SEGMENT, 3)
            check(await _places(store) == (0, 4, 10), "nothing changes at or before the start")
            await store.truncate(SEGMENT, 5)
            check(await _places(store) == (None, 5, 10), "all before the offset is dropped")
            check(await store.restore(SEGMENT, 0) == 5, "there is nothing to restore")
            await store.release(SEGMENT, 5)
            check(await _places(store) == (None, 5, 10), "there is nothing to release")

    async def law_keeping_is_safe_to_repeat_and_durable(self) -> None:
        async with self.open() as store:
            await _fill(store, SEGMENT, b"0123456789")
            for _ in range(2):
                await store.truncate(SEGMENT, 8, keep=True)
                await store.release(SEGMENT, 3)
                check(await _places(store) == (3, 8, 10), "a repeated call changes nothing")
            await store.truncate(SEGMENT, 5, keep=True)
            await store.release(SEGMENT, 1)
            check(await _places(store) == (3, 8, 10), "neither end moves back")
        async with self.open() as store:
            check(await _places(store) == (3, 8, 10), "keeping is durable")
            for _ in range(2):
                check(await store.restore(SEGMENT, 4) == 4, "a repeated call changes nothing")
            check(await store.restore(SEGMENT, 6) == 4, "restoring never drops")
        async with self.open() as store:
            check(await _places(store) == (3, 4, 10), "restoring is durable")
            check(await _text(store, 4) == b"456789", "restored bytes are as they were")

    async def law_keeping_has_bounds(self) -> None:
        async with self.open() as store:
            await _fill(store, SEGMENT, b"0123456789")
            await store.truncate(SEGMENT, 4, keep=True)
            check(await _error(store.truncate(SEGMENT, 11, keep=True)) is InvalidArgumentError, "not beyond the length")
            check(
                await _error(store.release(SEGMENT, 5)) is InvalidArgumentError, "only truncated bytes can be released"
            )
            check(await _error(store.restore(SEGMENT, -1)) is InvalidArgumentError, "offsets are not negative")
            check(await _places(store) == (0, 4, 10), "a refused call changes nothing")
            for call in (store.release("s/x/0", 0), store.restore("s/x/0", 0), store.truncate("s/x/0", 0, keep=True)):
                check(await _error(call) is SegmentNotFoundError, "there is no such segment")

    async def law_sealed_segments_keep_and_deleted_ones_do_not(self) -> None:
        async with self.open() as store:
            await _fill(store, SEGMENT, b"0123456789")
            await store.seal(SEGMENT)
            await store.truncate(SEGMENT, 10, keep=True)
            check(await _places(store) == (0, 10, 10), "a sealed segment keeps all of it")
            check(await store.restore(SEGMENT, 2) == 2, "its bytes can be restored")
            check(await _text(store, 2) == b"23456789", "restored bytes are as they were")
            await store.delete(SEGMENT)
            await store.create_segment(SEGMENT)
            check(await _places(store) == (None, 0, 0), "a deleted segment keeps nothing")
            check(await store.restore(SEGMENT, 0) == 0, "there is nothing to restore")

    async def law_a_source_that_keeps_bytes_is_not_merged(self) -> None:
        async with self.open() as store:
            await _fill(store, SEGMENT, b"01")
            await _fill(store, TRANSACTION, b"abc")
            await store.truncate(TRANSACTION, 1, keep=True)
            check(
                await _error(store.merge(SEGMENT, TRANSACTION)) is InvalidArgumentError, "truncated sources are refused"
            )
            await store.restore(TRANSACTION, 0)
            check(await store.merge(SEGMENT, TRANSACTION) == 5, "a fully restored source is merged")
            check(await _text(store, 0) == b"01abc", "all its bytes are merged")

    # --- counting -----------------------------------------------------------------------------------------

    async def law_counts_are_exact_at_every_event(self) -> None:
        appends = [[bytes(3)] * 4, [b"x" * size for size in (0, 100, 7)], [b"y" * 20_000], [bytes(9)] * 2]
        ends = list(accumulate((len(event) + 8 for events in appends for event in events), initial=0))
        async with self.open() as store:
            await _write(store, SEGMENT, appends)
            await _check_counts(store, ends, 0)
            info = await store.info(SEGMENT)
            check((info.length, info.event_count) == (ends[-1], 10), "the info counts all events", info=info)
            await store.truncate(SEGMENT, ends[6], keep=True)
            await store.release(SEGMENT, ends[2])
            await _check_counts(store, ends, 2)
            check((await store.info(SEGMENT)).event_count == 10, "truncated events stay counted")
            check(
                await _error(store.count_events(SEGMENT, ends[1], ends[4])) is TruncatedError,
                "truncated events are not counted",
            )
            for start, end in ((ends[3], ends[-1] + 1), (ends[4], ends[3]), (-1, ends[3])):
                error = await _error(store.count_events(SEGMENT, start, end))
                check(
                    error in (InvalidArgumentError, TruncatedError),
                    "ranges outside are refused",
                    start=start,
                    end=end,
                )
        async with self.open() as store:
            await _check_counts(store, ends, 2)

    async def law_a_merge_brings_its_events(self) -> None:
        async with self.open() as store:
            await _write(store, SEGMENT, [[b"a", b"bc"]])
            await _write(store, TRANSACTION, [[b"1", b"2"], [b"3"]])
            await store.merge(SEGMENT, TRANSACTION)
            check((await store.info(SEGMENT)).event_count == 5, "merged events count")
            check(await store.count_events(SEGMENT, 19, 19 + 18) == 2, "they are counted at their new offsets")

    async def law_a_large_event_is_one(self) -> None:
        event = bytes(50_000)
        async with self.open() as store:
            await _write(store, SEGMENT, [[b"a"]])
            name = await store.create_transient(SEGMENT, UUID(int=5))
            await _fill(store, name, *_cut(frame_events([event]), 20_000))
            end = await store.merge(SEGMENT, name)
            await _write(store, SEGMENT, [[b"b"]])
            check((await store.info(SEGMENT)).event_count == 3, "a large event counts once")
            check(await store.count_events(SEGMENT, 9, end) == 1, "its range counts as one event")
            for place in (10, 20_010, end - 1, end):
                check(await store.next_event_boundary(SEGMENT, place) == end, "no event begins inside", place=place)

    # --- limits -------------------------------------------------------------------------------------------

    async def law_appends_stop_at_the_limit_and_go_on_when_it_is_raised(self) -> None:
        async with self.open() as store:
            await _fill(store, SEGMENT, b"0123")
            await store.create_segment(SECOND)
            await _limit(store, LimitAction.HOLD, 10)
            first, second = await _sender(store, SEGMENT, 1), await _sender(store, SECOND, 2)
            check(await first.append(b"456") is None, "there is room")
            held = await second.append(b"....")
            check(type(held) is QuotaHeldError, "the segments count together", held=held)
            check(held is not None and held.fields["subscriber"] == "slow", "the error says why", held=held)
            check(held is not None and held.fields["stream"] == STREAM, "the error names the stream", held=held)
            check(await second.append(b"...") is None, "appends that fit are accepted")
            check(type(await first.append(b".")) is QuotaHeldError, "nothing fits any more")
            await _limit(store, LimitAction.HOLD, 11)
            check(await first.append(b"!") is None, "the limit was raised")
            check(type(await first.append(b".")) is QuotaHeldError, "and is reached again")
            await store.limit_appends([AppendLimit(stream=STREAM, segments=())])
            check(await first.append(b"...........") is None, "without bounds there is no limit")
            check(await _text(store, 0) == b"0123456!...........", "refused appends left nothing")

    async def law_refused_appends_leave_the_writer_as_it_was(self) -> None:
        async with self.open() as store:
            await store.create_segment(SEGMENT)
            await _limit(store, LimitAction.REJECT, 3)
            sender = await _sender(store, SEGMENT, 1)
            check(await sender.append(b"ab") is None, "there is room")
            outcomes = await sender.append_many([b"cd", b"e"])
            check(type(outcomes[0]) is QuotaExceededError, "the append is refused", outcomes=outcomes)
            check(outcomes[1] is not None, "the next append is refused too", outcomes=outcomes)
            check(
                await store.setup_append(SEGMENT, sender.writer) == sender.last,
                "the writer's last event number is unchanged",
            )
            check(await sender.append(b"c") is None, "appends that fit are accepted")
            check(await _text(store, 0) == b"abc", "in order")

    async def law_events_are_limited_too(self) -> None:
        async with self.open() as store:
            await store.create_segment(SEGMENT)
            limit = AppendLimit(stream=STREAM, segments=(SEGMENT,), total_events=3)
            await store.limit_appends([limit])
            sender = await _sender(store, SEGMENT, 1)
            check(await sender.append(b"ab", count=2) is None, "there is room")
            check(type(await sender.append(b"cd", count=2)) is QuotaHeldError, "two events exceed the limit")
            check(await sender.append(b"c", count=1) is None, "one event does not")

    async def law_events_may_be_limited_by_another_action(self) -> None:
        async with self.open() as store:
            await store.create_segment(SEGMENT)
            sender = await _sender(store, SEGMENT, 1)
            limit = AppendLimit(
                stream=STREAM,
                segments=(SEGMENT,),
                total_bytes=2,
                action=LimitAction.NOTIFY,
                total_events=3,
                events_action=LimitAction.REJECT,
            )
            await store.limit_appends([limit])
            check(await sender.append(b"abcd", count=2) is None, "bytes only notify")
            check(list(await store.limits_reached()) == [STREAM], "the limit in bytes is reported")
            check(type(await sender.append(b"ef", count=2)) is QuotaExceededError, "events are refused")
            waiting = replace(limit, action=LimitAction.HOLD, total_events=2)
            await store.limit_appends([waiting])
            check(type(await sender.append(b"g", count=1)) is QuotaHeldError, "bytes are checked before events")

    async def law_counters_are_exact_while_appends_are_in_flight(self) -> None:
        async with self.open() as store:
            await store.create_segment(SEGMENT)
            await _limit(store, LimitAction.HOLD, 25)
            sender = await _sender(store, SEGMENT, 1)
            outcomes = await sender.append_many([b"0123456789"] * 4)
            check([outcome is None for outcome in outcomes] == [True, True, False, False], "exactly what fits")
            check(await _places(store) == (None, 0, 20), "is appended")

    async def law_transactions_wait_at_the_bound_and_count_once_merged(self) -> None:
        async with self.open() as store:
            await store.create_segment(SEGMENT)
            await store.create_segment(TRANSACTION)
            await _limit(store, LimitAction.HOLD, 4)
            first, part = await _sender(store, SEGMENT, 1), await _sender(store, TRANSACTION, 2)
            check(await part.append(b"012345") is None, "an open transaction does not count")
            check(await first.append(b"ab") is None, "it uses no room")
            await store.merge(SEGMENT, TRANSACTION)
            check(type(await first.append(b".")) is QuotaHeldError, "a merged transaction counts")
            await store.create_segment(TRANSACTION)
            part = await _sender(store, TRANSACTION, 3)
            check(type(await part.append(b".")) is QuotaHeldError, "the next transaction waits")
            await _limit(store, LimitAction.NOTIFY, 4)
            check(await part.append(b".") is None, "a NOTIFY limit does not make it wait")

    async def law_segments_created_later_are_of_the_stream(self) -> None:
        async with self.open() as store:
            await store.create_segment(SEGMENT)
            await _limit(store, LimitAction.HOLD, 4, SEGMENT)
            await store.create_segment(SECOND)
            sender = await _sender(store, SECOND, 1)
            check(await sender.append(b"123") is None, "there is room")
            check(type(await sender.append(b"45")) is QuotaHeldError, "the limit is the stream's")
            await _limit(store, LimitAction.HOLD, 4, SEGMENT)
            check(type(await sender.append(b"45")) is QuotaHeldError, "also under the next limit")
            await _limit(store, LimitAction.HOLD, 5, SEGMENT, SECOND)
            check(await sender.append(b"45") is None, "the segment counts once")

    async def law_truncated_and_deleted_bytes_stay_counted(self) -> None:
        async with self.open() as store:
            await _fill(store, SEGMENT, b"0123")
            await store.create_segment(SECOND)
            await _limit(store, LimitAction.HOLD, 5)
            await store.truncate(SEGMENT, 4)
            await store.delete(SEGMENT)
            sender = await _sender(store, SECOND, 1)
            check(type(await sender.append(b"45")) is QuotaHeldError, "the bound includes them")
            await _limit(store, LimitAction.HOLD, 5, SECOND)
            check(await sender.append(b"45") is None, "a new limit that does not list them excludes them")

    async def law_reached_limits_are_reported_once(self) -> None:
        async with self.open() as store:
            await store.create_segment(SEGMENT)
            waiting = asyncio.ensure_future(store.limits_reached())
            sender = await _sender(store, SEGMENT, 1)
            for action in LimitAction:
                await _limit(store, action, 0)
                check(not waiting.done(), "the limit is not reached yet")
                refused = [await sender.append(b"x") is not None for _ in range(2)]
                check(
                    refused == [action is not LimitAction.NOTIFY] * 2, "only NOTIFY accepts the append", action=action
                )
                async with asyncio.timeout(_PATIENCE_S):
                    check(list(await waiting) == [STREAM], "the waiting caller gets the stream")
                waiting = asyncio.ensure_future(store.limits_reached())
                await sender.append(b"x")
                await asyncio.sleep(0)
                check(not waiting.done(), "each limit is reported once")
            waiting.cancel()

    async def law_a_limit_already_passed_is_reported_at_once(self) -> None:
        async with self.open() as store:
            await _fill(store, SEGMENT, b"0123")
            waiting = asyncio.ensure_future(store.limits_reached())
            for action, total_bytes in ((LimitAction.HOLD, 3), (LimitAction.NOTIFY, 4)):
                await _limit(store, action, total_bytes, SEGMENT)
                await asyncio.sleep(0)
                check(not waiting.done(), "the limit is not reached", action=action)
            await _limit(store, LimitAction.NOTIFY, 3, SEGMENT)
            async with asyncio.timeout(_PATIENCE_S):
                check(list(await waiting) == [STREAM], "earlier appends have passed it")

    # --- changes ------------------------------------------------------------------------------------------

    async def law_changes_are_returned_since_a_mark(self) -> None:
        async with self.open() as store:
            await _fill(store, SEGMENT, b"1")
            first = await store.changed_segments(0)
            check(not first.complete, "the first answer is incomplete")
            await store.create_segment(SECOND)
            second = await store.changed_segments(first.mark)
            check((list(second.names), second.complete) == ([], True), "no segment has changed", second=second)
            sender, other = await _sender(store, SEGMENT, 1), await _sender(store, SECOND, 2)
            for data in (b"a", b"b"):
                await sender.append(data)
            third = await store.changed_segments(second.mark)
            check((list(third.names), third.complete) == ([SEGMENT], True), "each once", third=third)
            await other.append(b"c")
            again = await store.changed_segments(second.mark)
            check(again.complete and set(again.names) == {SEGMENT, SECOND}, "a lost answer is returned again")
            last = await store.changed_segments(again.mark)
            check((list(last.names), last.complete) == ([], True), "reported changes are not repeated", last=last)
            check(not (await store.changed_segments(first.mark)).complete, "an older mark is not valid")

    async def law_seals_and_merges_are_changes(self) -> None:
        async with self.open() as store:
            for name in (SEGMENT, SECOND, TRANSACTION):
                await store.create_segment(name)
            mark = (await store.changed_segments(0)).mark
            await (await _sender(store, TRANSACTION, 1)).append(b"x")
            found = await store.changed_segments(mark)
            check((list(found.names), found.complete) == ([], True), "an unmerged transaction is not a change")
            await store.merge(SEGMENT, TRANSACTION)
            await store.seal(SECOND)
            found = await store.changed_segments(found.mark)
            check(
                found.complete and set(found.names) == {SEGMENT, SECOND}, "a merge and a seal are changes", found=found
            )


class _Sender:
    """A writer that continues after its last accepted append."""

    def __init__(self, store: LocalSegmentService, segment: str, writer: UUID, last: int) -> None:
        self._store = store
        self._segment = segment
        self.writer = writer
        self.last = last

    async def append(self, data: bytes, *, count: int = 1) -> PenstockError | None:
        """The error that refused the append, or None."""
        return (await self.append_many([data], count=count))[0]

    async def append_many(self, data: Sequence[bytes], *, count: int = 1) -> list[PenstockError | None]:
        """As ``append``, for several appends in flight at the same time."""
        answers: list[Appended | PenstockError] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(answer: Appended | PenstockError) -> None:
            answers.append(answer)
            if len(answers) == len(data):
                done.set_result(None)

        previous, numbers = self.last, []
        for item in data:
            number = max(previous, -1) + count
            request = Append(
                segment=self._segment,
                writer=self.writer,
                data=item,
                event_number=number,
                event_count=count,
                previous=previous,
            )
            self._store.submit_append(request, answered)
            previous = number
            numbers.append(number)
        async with asyncio.timeout(_PATIENCE_S):
            await done
        for number, answer in zip(numbers, answers, strict=True):
            if isinstance(answer, Appended):
                self.last = number
        return [None if isinstance(answer, Appended) else answer for answer in answers]


async def _sender(store: LocalSegmentService, segment: str, number: int) -> _Sender:
    writer = UUID(int=1000 + number)
    return _Sender(store, segment, writer, await store.setup_append(segment, writer))


async def _fill(store: LocalSegmentService, segment: str, *data: bytes) -> None:
    """Append one event each, creating the segment if need be."""
    await _create(store, segment)
    sender = await _sender(store, segment, 0)
    for item in data:
        check(await sender.append(item) is None, "an append without a limit is accepted")


async def _write(store: LocalSegmentService, segment: str, appends: Sequence[Sequence[bytes]]) -> None:
    await _create(store, segment)
    sender = await _sender(store, segment, 0)
    for events in appends:
        check(await sender.append(frame_events(events), count=len(events)) is None, "an append is accepted")


async def _create(store: SegmentService, segment: str) -> None:
    try:
        await store.info(segment)
    except SegmentNotFoundError:
        await store.create_segment(segment)


async def _limit(store: SegmentService, action: LimitAction, total_bytes: int, *segments: str) -> None:
    limit = AppendLimit(
        stream=STREAM,
        segments=segments or (SEGMENT, SECOND),
        total_bytes=total_bytes,
        action=action,
        reason={"subscriber": "slow"},
    )
    await store.limit_appends([limit])


async def _check_counts(store: SegmentService, ends: Sequence[int], first: int) -> None:
    for low in range(first, len(ends)):
        for high in range(low, len(ends)):
            count = await store.count_events(SEGMENT, ends[low], ends[high])
            check(count == high - low, "counts are exact", start=ends[low], end=ends[high], count=count)


async def _places(store: SegmentService) -> tuple[int | None, int, int]:
    info: SegmentInfo = await store.info(SEGMENT)
    return info.kept_offset, info.start_offset, info.length


async def _text(store: SegmentService, start: int) -> bytes:
    text = b""
    while True:
        found = await store.read(SEGMENT, start + len(text), 1 << 20, wait=False)
        text += b"".join(found.parts)
        if not any(map(len, found.parts)):
            return text


async def _error(call: Awaitable[object]) -> type[PenstockError] | None:
    try:
        await call
    except PenstockError as error:
        return type(error)
    return None


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]
