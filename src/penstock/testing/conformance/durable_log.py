"""Laws of ``ports.durable_log.DurableLog``."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from penstock.model.errors import FencedError, InternalError, InvalidArgumentError
from penstock.ports.durable_log import DurableLog, LogAddress
from penstock.ports.files import Buffer
from penstock.testing.conformance import check


class DurableLogLaws:
    """Subclass and implement ``open``; ``frame_max`` is the largest payload that the log takes, 16 KiB or more."""

    frame_max: int

    def open(self) -> AbstractAsyncContextManager[DurableLog]:
        """Reopen the same log. The first call of an instance finds it empty."""
        raise NotImplementedError

    async def law_empty_log_replays_nothing_and_starts_at_one(self) -> None:
        async with self.open() as log:
            check(await replayed(log) == [], "an empty log replays nothing")
            check(await log.append([b"a"]) == 1, "the first address is 1")
            check(await log.append([b"b"]) == 2, "addresses increase by one")

    async def law_acknowledged_frames_are_replayed_by_every_later_opening(self) -> None:
        frames = [b"", b"x", bytes(1000), b"long" * 400]
        async with self.open() as log:
            await replayed(log)
            addresses = [await log.append([frame]) for frame in frames]
        expected = list(zip(addresses, frames, strict=True))
        for _ in range(3):
            async with self.open() as log:
                check(await replayed(log) == expected, "what was acknowledged is replayed")

    async def law_appends_resolve_in_call_order(self) -> None:
        order: list[int] = []
        async with self.open() as log:
            await replayed(log)

            async def append(number: int) -> LogAddress:
                address = await log.append([b"%d" % number])
                order.append(number)
                return address

            addresses = await asyncio.gather(*(append(number) for number in range(100)))
            check(addresses == sorted(addresses), "addresses follow call order", addresses=addresses)
            check(order == list(range(100)), "appends resolve in call order", order=order)
        async with self.open() as log:
            frames = [frame for _, frame in await replayed(log)]
            check(frames == [b"%d" % number for number in range(100)], "frames are replayed in call order")

    async def law_parts_make_one_frame(self) -> None:
        parts: list[Buffer] = [b"one", bytearray(b"two"), memoryview(b"..three..")[2:7], b""]
        parts += [b"%d," % number for number in range(3000)]
        async with self.open() as log:
            await replayed(log)
            await log.append(parts)
        async with self.open() as log:
            check([frame for _, frame in await replayed(log)] == [b"".join(parts)], "a frame is its parts joined")

    async def law_parts_may_be_reused_once_append_returns(self) -> None:
        buffer = bytearray(b"first")
        async with self.open() as log:
            await replayed(log)
            await log.append([buffer])
            buffer[:] = b"other"
            await log.append([buffer])
        async with self.open() as log:
            check([frame for _, frame in await replayed(log)] == [b"first", b"other"], "parts were copied or written")

    async def law_epoch_grows_with_every_opening(self) -> None:
        epochs = []
        for _ in range(3):
            async with self.open() as log:
                epochs.append(log.epoch)
        check(epochs == sorted(set(epochs)), "epochs grow", epochs=epochs)

    async def law_opening_fences_every_earlier_opening(self) -> None:
        async with self.open() as old:
            await replayed(old)
            await old.append([b"old"])
            async with self.open() as new:
                await refused(old.append([b"zombie"]), FencedError)
                check([frame for _, frame in await replayed(new)] == [b"old"], "the new opening sees what was acked")
                await new.append([b"new"])
                await refused(old.append([b"zombie again"]), FencedError)
                await refused(old.truncate(LogAddress(2)), FencedError)
        async with self.open() as log:
            frames = [frame for _, frame in await replayed(log)]
            check(frames == [b"old", b"new"], "a fenced opening leaves no trace", frames=frames)

    async def law_appends_in_flight_across_a_fence_are_kept_if_acknowledged(self) -> None:
        async with self.open() as old:
            await replayed(old)
            tasks = [asyncio.ensure_future(old.append([b"%d" % number])) for number in range(20)]
            await asyncio.sleep(0)
            async with self.open() as new:
                seen = [frame for _, frame in await replayed(new)]
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        acked = [b"%d" % number for number, outcome in enumerate(outcomes) if isinstance(outcome, int)]
        check(seen[: len(acked)] == acked, "acknowledged frames survive the fence", acked=acked, seen=seen)
        async with self.open() as log:
            again = [frame for _, frame in await replayed(log)]
            check(again == seen, "what one opening replayed, every later one replays", seen=seen, again=again)

    async def law_truncate_never_touches_later_frames(self) -> None:
        async with self.open() as log:
            await replayed(log)
            addresses = [await log.append([b"%d" % number]) for number in range(50)]
            await log.truncate(addresses[29])
            await log.truncate(addresses[9])
        async with self.open() as log:
            left = await replayed(log)
            check(left == sorted(left), "frames are replayed in order")
            check(left[-20:] == [(addresses[i], b"%d" % i) for i in range(30, 50)], "later frames stay", left=left)
            check(await log.append([b"next"]) == addresses[-1] + 1, "addresses are never reused")

    async def law_addresses_go_on_after_everything_was_truncated(self) -> None:
        async with self.open() as log:
            await replayed(log)
            for _ in range(5):
                last = await log.append([b"gone"])
            await log.truncate(last)
        for step in range(1, 3):
            async with self.open() as log:
                await replayed(log)
                check(log.last == last + step - 1, "the last address outlives its frame", last=log.last)
                check(await log.append([b"x"]) == last + step, "addresses are never reused", step=step)

    async def law_a_wipe_ends_once_what_came_before_is_truncated(self) -> None:
        async with self.open() as log:
            await replayed(log)
            for number in range(5):
                await log.append([b"%d" % number])
            check(await log.wipes_from_ms() == 0, "a log that was always wipeable says so")
            upto = await log.begin_wipe()
            check(upto == 5, "the address is the last one before the wipe", upto=upto)
            last = await log.append([b"behind"])
            check(last == 6, "addresses continue", last=last)
            check(await log.end_wipe() is None, "frames before it are still needed")
            await log.truncate(upto)
            check(await log.end_wipe() is not None, "no earlier frame is left")
            check(await log.end_wipe() is not None, "a repeated call returns the same")
            await log.append([b"more"])
        async with self.open() as log:
            frames = [frame for _, frame in await replayed(log)]
            check(frames == [b"behind", b"more"], "later frames stay", frames=frames)

    async def law_frame_over_the_limit_is_refused_and_the_log_goes_on(self) -> None:
        async with self.open() as log:
            await replayed(log)
            await refused(log.append([bytes(self.frame_max + 1)]), InvalidArgumentError)
            largest = bytes(self.frame_max)
            await log.append([largest])
        async with self.open() as log:
            check([frame for _, frame in await replayed(log)] == [largest], "the largest frame is taken")

    async def law_cancelled_append_leaves_the_log_going_and_its_frame_whole_or_absent(self) -> None:
        async with self.open() as log:
            await replayed(log)
            for turns in range(6):
                task = asyncio.ensure_future(log.append([b"maybe %d" % turns]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await log.append([b"sure %d" % turns])
        async with self.open() as log:
            frames = [frame for _, frame in await replayed(log)]
        sure = [frame for frame in frames if frame.startswith(b"sure")]
        check(sure == [b"sure %d" % turns for turns in range(6)], "acknowledged frames are there", frames=frames)
        check(set(frames) - set(sure) <= {b"maybe %d" % turns for turns in range(6)}, "no torn frame", frames=frames)

    async def law_append_before_replay_and_a_second_replay_are_refused(self) -> None:
        async with self.open() as log:
            await refused(log.append([b"early"]), InternalError)
            await replayed(log)
            await refused(replayed(log), InternalError)

    async def law_append_after_close_is_refused(self) -> None:
        async with self.open() as log:
            await replayed(log)
            await log.append([b"a"])
        await refused(log.append([b"late"]), FencedError)


async def replayed(log: DurableLog) -> list[tuple[LogAddress, bytes]]:
    """All frames that the log replays."""
    return [item async for item in log.replay()]


async def refused(call: object, kind: type[Exception]) -> None:
    """Await ``call``; fail unless it raises ``kind``."""
    try:
        result = await call  # type: ignore[misc]
    except kind:
        return
    raise AssertionError(f"call was not refused. expected={kind.__name__} result={result!r}")
