"""Laws of ``ports.keyvalue.KeyValueStore``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

from penstock.ports.keyvalue import KeyValueStore
from penstock.testing.conformance import check

_END = b"\xff" * 8


class KeyValueLaws:
    """Subclass and implement ``open``."""

    def open(self) -> AbstractAsyncContextManager[KeyValueStore]:
        """Reopen the same store. The first call of an instance finds it empty."""
        raise NotImplementedError

    async def law_commits_are_seen_at_once_and_after_reopening(self) -> None:
        async with self.open() as store:
            await store.commit([(b"a", b"1"), (b"b", b""), (b"", b"empty key")])
            check(await store.get_many([b"b", b"x", b"a", b""]) == [b"", None, b"1", b"empty key"], "reads see commits")
        async with self.open() as store:
            check(await store.get_many([b"a"]) == [b"1"], "commits are durable")

    async def law_values_keep_every_byte(self) -> None:
        entries = [(bytes([i]) * (i + 1), bytes(range(256)) * i) for i in range(40)]
        async with self.open() as store:
            await store.commit(entries)
            check(
                await store.get_many([key for key, _ in entries]) == [value for _, value in entries], "bytes are kept"
            )

    async def law_keys_are_ordered_as_unsigned_bytes(self) -> None:
        keys = [b"\x00", b"\x00\x00", b"\x7f", b"\x80", b"\xfe\xff", b"\xff", b"a", b"aa", b"b"]
        async with self.open() as store:
            await store.commit([(key, key) for key in reversed(keys)])
            found = await store.scan(b"", _END, limit=100)
            check([key for key, _ in found] == sorted(keys), "scan is in key order", found=found)
            back = await store.scan(b"", _END, limit=100, reverse=True)
            check(list(back) == list(found)[::-1], "a reverse scan returns the same entries backwards", back=back)

    async def law_scan_is_half_open_and_limited(self) -> None:
        async with self.open() as store:
            await store.commit([(b"%02d" % i, b"%d" % i) for i in range(20)])
            check([k for k, _ in await store.scan(b"03", b"06", limit=9)] == [b"03", b"04", b"05"], "end is excluded")
            check([k for k, _ in await store.scan(b"03", b"16", limit=2)] == [b"03", b"04"], "limit counts from start")
            back = await store.scan(b"03", b"16", limit=2, reverse=True)
            check([k for k, _ in back] == [b"15", b"14"], "limit counts from the end in reverse", back=back)
            for start, end, limit in ((b"05", b"05", 9), (b"06", b"05", 9), (b"00", b"99", 0)):
                check(list(await store.scan(start, end, limit=limit)) == [], "an empty range has no entries")

    async def law_ranges_go_before_deletes_before_puts(self) -> None:
        async with self.open() as store:
            await store.commit([(b"%02d" % i, b"old") for i in range(10)])
            await store.commit(
                [(b"03", b"new"), (b"07", b"new")],
                [b"03", b"09", b"absent"],
                delete_ranges=[(b"02", b"05"), (b"x", b"a")],
            )
            found = dict(await store.scan(b"", _END, limit=100))
            old = dict.fromkeys((b"00", b"01", b"05", b"06", b"08"), b"old")
            check(found == {**old, b"03": b"new", b"07": b"new"}, "order within a batch", found=found)

    async def law_last_of_equal_keys_wins(self) -> None:
        async with self.open() as store:
            await store.commit([(b"k", b"1"), (b"k", b"2")])
            check(await store.get_many([b"k"]) == [b"2"], "the last put of a key wins")

    async def law_failed_batch_changes_nothing(self) -> None:
        def breaks() -> Iterator[tuple[bytes, bytes]]:
            yield b"a", b"2"
            raise ZeroDivisionError

        async with self.open() as store:
            await store.commit([(b"a", b"1")])
            try:
                await store.commit(breaks(), delete_ranges=[(b"", _END)])
            except ZeroDivisionError:
                check(list(await store.scan(b"", _END, limit=9)) == [(b"a", b"1")], "a batch is all or nothing")
                return
            raise AssertionError("the failure of the batch was swallowed")

    async def law_readers_never_see_half_a_batch(self) -> None:
        async with self.open() as store:
            await store.commit([(b"%02d" % i, b"0") for i in range(50)])

            async def write() -> None:
                for version in range(1, 10):
                    await store.commit([(b"%02d" % i, b"%d" % version) for i in range(50)])

            writing = asyncio.ensure_future(write())
            while not writing.done():
                values = {value for _, value in await store.scan(b"", _END, limit=100)}
                check(len(values) == 1, "a scan sees whole batches", values=values)
                await asyncio.sleep(0)
            await writing

    async def law_concurrent_commits_apply_in_call_order(self) -> None:
        async with self.open() as store:
            await asyncio.gather(*(store.commit([(b"k", b"%d" % i)]) for i in range(20)))
            check(await store.get_many([b"k"]) == [b"19"], "the later commit wins")

    async def law_cancelled_commit_never_lands_behind_a_later_one(self) -> None:
        async with self.open() as store:
            for turns in range(5):
                task = asyncio.ensure_future(store.commit([(b"k", b"cancelled")]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await store.commit([(b"k", b"%d" % turns)])
                check(await store.get_many([b"k"]) == [b"%d" % turns], "order holds across a cancelled commit")

    async def law_many_keys_are_read_and_removed(self) -> None:
        keys = [b"%05d" % i for i in range(2000)]
        async with self.open() as store:
            await store.commit([(key, key) for key in keys])
            check(list(await store.get_many(keys)) == keys, "large reads keep the order of the keys")
            await store.commit([], keys[::2])
            check([k for k, _ in await store.scan(b"", _END, limit=9999)] == keys[1::2], "large deletes")
