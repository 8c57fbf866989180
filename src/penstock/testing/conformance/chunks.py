"""Laws of ``ports.chunks.ChunkStorage``."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from penstock.model.errors import CorruptDataError, InternalError, SegmentNotFoundError, UnsupportedError
from penstock.ports.chunks import ChunkStorage, ChunkWrite
from penstock.testing.conformance import check
from penstock.testing.conformance.durable_log import refused

_NAME = "0/00ff-01-0"
_LARGE_BYTES = 100_000
_BLOCK = 64 << 10  # bytes; a multiple of the blocks of all file systems in use


class ChunkLaws:
    """Subclass and implement ``open``. ``many`` is how many objects are tried at a time."""

    many = 40

    def open(self) -> AbstractAsyncContextManager[ChunkStorage]:
        """Reopen the same storage. The first call of an instance finds it empty."""
        raise NotImplementedError

    async def law_appended_bytes_are_read_and_survive_reopening(self) -> None:
        async with self.open() as chunks:
            await chunks.append(_NAME, 0, [b"hello ", bytearray(b"wor"), memoryview(b"ld")])
            await chunks.append(_NAME, 11, [b"!"])
            await chunks.sync(_NAME)
            check(await chunks.read(_NAME, 0, 100) == b"hello world!", "reads see appends")
            check(await chunks.read(_NAME, 6, 5) == b"world", "reads are exact inside the object")
            check(await chunks.read(_NAME, 12, 5) == b"", "reads end at the end")
            room = memoryview(bytearray(b"." * 8))
            check(
                await chunks.read_into(_NAME, 6, room, ahead=4) == 6,
                "reads into memory return the number of bytes read",
            )
            check(bytes(room) == b"world!..", "and do not change the bytes after it")
        async with self.open() as chunks:
            check(await chunks.read(_NAME, 0, 100) == b"hello world!", "synced bytes are durable")

    async def law_append_overwrites_what_a_failed_attempt_left(self) -> None:
        async with self.open() as chunks:
            await chunks.append(_NAME, 0, [b"durable"])
            if chunks.mutable:
                await chunks.sync(_NAME)
            await chunks.append(_NAME, 7, [b"a long attempt that failed"])
            await chunks.append(_NAME, 7, [b"short"])
            if chunks.mutable:
                await chunks.sync(_NAME)
            check(await chunks.read(_NAME, 0, 100) == b"durableshort", "the object ends where the last append ends")
            await chunks.append(_NAME, 0, [b"new"])
            check(await chunks.read(_NAME, 0, 100) == b"new", "offset 0 replaces the object")

    async def law_an_object_that_cannot_change_is_written_once(self) -> None:
        async with self.open() as chunks:
            if chunks.mutable:
                return
            await chunks.append(_NAME, 0, [b"durable"])
            await chunks.sync(_NAME)
            await chunks.sync(_NAME)
            for offset in (3, 7):
                await refused(chunks.append(_NAME, offset, [b"more"]), UnsupportedError)
            await chunks.free_head(_NAME, 5)
            check(await chunks.read(_NAME, 0, 100) == b"durable", "the object is as it was synced")
        async with self.open() as chunks:
            await refused(chunks.append(_NAME, 7, [b"more"]), UnsupportedError)
            check(await chunks.read(_NAME, 0, 100) == b"durable", "the object is as it was synced")

    async def law_many_are_appended_together_and_survive_reopening(self) -> None:
        names = [f"{number % 3}/{number:04d}" for number in range(self.many)]
        async with self.open() as chunks:
            for offset, data in ((0, b"first "), (6, b"second")):
                if offset and not chunks.mutable:
                    break
                writes = [ChunkWrite(name=name, offset=offset, parts=[name.encode(), data]) for name in names[:1]]
                writes += [ChunkWrite(name=name, offset=offset, parts=[data[:2], data[2:]]) for name in names[1:]]
                if offset:
                    writes[0] = ChunkWrite(name=names[0], offset=6 + len(names[0]), parts=[data])
                check(not any(await chunks.append_together(writes)), "all are durable", offset=offset)
        whole = b"first second" if chunks.mutable else b"first "
        async with self.open() as chunks:
            for name in names[1:]:
                check(await chunks.read(name, 0, 99) == whole, "each object has its own bytes", name=name)
            check(await chunks.read(names[0], 0, 99) == names[0].encode() + whole, "also if sizes differ")
            check(list(await chunks.list()) == sorted(names), "names are durable as well")

    async def law_one_of_many_fails_alone(self) -> None:
        names = [f"0/{number:04d}" for number in range(self.many)]
        async with self.open() as chunks:
            if chunks.mutable:
                await chunks.append(names[1], 0, [b"abc"])
                await chunks.sync(names[1])
            writes = [ChunkWrite(name=name, offset=0, parts=[b"x"]) for name in names]
            writes[0] = ChunkWrite(name=names[0], offset=5, parts=[b"x"])
            if chunks.mutable:
                writes[1] = ChunkWrite(name=names[1], offset=5, parts=[b"x"])
            outcomes = await chunks.append_together(writes)
            check(
                isinstance(outcomes[0], SegmentNotFoundError), "the object to append to is missing", found=outcomes[0]
            )
            if chunks.mutable:
                check(isinstance(outcomes[1], CorruptDataError), "the object ends before the offset", found=outcomes[1])
                check(await chunks.read(names[1], 0, 99) == b"abc", "and is left as it was")
            check(not any(outcomes[2:]), "the other appends succeed")
            check(list(await chunks.list()) == names[1:], "a refused append creates nothing")

    async def law_append_to_a_missing_object_is_refused(self) -> None:
        async with self.open() as chunks:
            await refused(chunks.append(_NAME, 5, [b"x"]), SegmentNotFoundError)
            check(list(await chunks.list()) == [], "a refused append creates nothing")

    async def law_append_behind_the_end_is_corruption(self) -> None:
        async with self.open() as chunks:
            await chunks.append(_NAME, 0, [b"abc"])
            await refused(chunks.append(_NAME, 5, [b"x"]), CorruptDataError)
            check(await chunks.read(_NAME, 0, 100) == b"abc", "a refused append changes nothing")

    async def law_missing_objects_are_named_as_such(self) -> None:
        async with self.open() as chunks:
            await refused(chunks.read(_NAME, 0, 1), SegmentNotFoundError)
            await refused(chunks.sync(_NAME), SegmentNotFoundError)
            await chunks.delete(_NAME)
            await chunks.free_head(_NAME, 5)
            check(list(await chunks.list()) == [], "neither of them creates anything")

    async def law_deleted_objects_are_gone(self) -> None:
        async with self.open() as chunks:
            await chunks.append(_NAME, 0, [b"x" * _LARGE_BYTES])
            await chunks.sync(_NAME)
            held_bytes = await chunks.allocated_bytes()
            await chunks.delete(_NAME)
            await refused(chunks.read(_NAME, 0, 1), SegmentNotFoundError)
            # A directory that was made for it may stay.
            freed_bytes = held_bytes - await chunks.allocated_bytes()
            check(freed_bytes >= _LARGE_BYTES, "a deleted object takes no space", freed=freed_bytes)

    async def law_wiping_leaves_nothing_that_could_be_overwritten(self) -> None:
        async with self.open() as chunks:
            await chunks.wipe(_NAME)
            check(list(await chunks.list()) == [], "wiping creates nothing")
            await chunks.append(_NAME, 0, [b"secret " * 20_000])
            await chunks.sync(_NAME)
            await chunks.wipe(_NAME)
            data = await chunks.read(_NAME, 0, 140_000)
            check(len(data) == 140_000, "the length stays", size=len(data))
            check(not any(data) or not chunks.mutable, "all bytes are overwritten if the storage can do it")
        async with self.open() as chunks:
            data = await chunks.read(_NAME, 0, 140_000)
            check(not any(data) or not chunks.mutable, "durably")
            await chunks.delete(_NAME)

    async def law_trimming_takes_what_lies_behind_an_end_and_nothing_else(self) -> None:
        async with self.open() as chunks:
            await chunks.trim(_NAME, 3)
            check(list(await chunks.list()) == [], "trimming creates nothing")
            await chunks.append(_NAME, 0, [b"kept"])
            if chunks.mutable:
                await chunks.sync(_NAME)
                await chunks.append(_NAME, 4, [b"secret " * 20_000])
            await chunks.sync(_NAME)
            await chunks.trim(_NAME, 4)
            await chunks.trim(_NAME, 9)
            check(await chunks.read(_NAME, 0, 99) == b"kept", "the object ends there, and is never extended")
            if chunks.mutable:
                await chunks.append(_NAME, 4, [b" on"])
                await chunks.sync(_NAME)
        async with self.open() as chunks:
            expected = b"kept on" if chunks.mutable else b"kept"
            check(await chunks.read(_NAME, 0, 99) == expected, "the end is durable, and the object can grow again")

    async def law_names_are_listed_sorted(self) -> None:
        names = ["1/b", "0/c.idx", "0/c", "1/a", "10/x"]
        async with self.open() as chunks:
            for name in names:
                await chunks.append(name, 0, [b"x"])
            check(list(await chunks.list()) == sorted(names), "names are sorted")

    async def law_freeing_the_head_keeps_the_rest(self) -> None:
        data = bytes(range(256)) * (_BLOCK // 256) * 4
        async with self.open() as chunks:
            if not chunks.mutable:
                return
            await chunks.append(_NAME, 0, [data])
            await chunks.sync(_NAME)
            before = await chunks.allocated_bytes()
            await chunks.free_head(_NAME, 3 * _BLOCK + 5)
            check(await chunks.allocated_bytes() <= before - 2 * _BLOCK, "space is freed", before=before)
            check(await chunks.read(_NAME, 3 * _BLOCK + 5, _BLOCK) == data[3 * _BLOCK + 5 :], "the rest is unchanged")
            await chunks.append(_NAME, len(data), [b"more"])
            check(await chunks.read(_NAME, len(data), 9) == b"more", "the object still grows at its end")

    async def law_names_not_made_by_us_are_refused(self) -> None:
        async with self.open() as chunks:
            for name in ("", "x", "/x", "../x", "a/../b", "a/b/c", "a/", "a/b\n", "a/.hidden", "ü/x"):
                await refused(chunks.append(name, 0, [b"x"]), InternalError)

    async def law_many_objects_are_kept_apart(self) -> None:
        names = [f"{number % 3}/{number:04d}" for number in range(self.many)]
        async with self.open() as chunks:
            for name in names:
                await chunks.append(name, 0, [name.encode()])
                await chunks.sync(name)
            for name in reversed(names):
                check(await chunks.read(name, 0, 99) == name.encode(), "each object has its own bytes", name=name)
