"""Laws of ``ports.files.Files``, as far as a living process can see them."""

from __future__ import annotations

from penstock.ports.files import Files
from penstock.testing.conformance import check
from penstock.testing.conformance.durable_log import refused


class FilesLaws:
    """Subclass and implement ``make``."""

    async def make(self) -> Files:
        """An empty directory tree. Called once per instance."""
        raise NotImplementedError

    async def law_written_bytes_are_read_at_once(self) -> None:
        files = await self.make()
        await files.make_dir("a/b")
        file = await files.open("a/b/f", create=True)
        await file.write_at(0, [b"one", b"", bytearray(b"two"), memoryview(b"three")])
        await file.write_at(3, [b"TWO"])
        check(await file.read_at(0, 100) == b"oneTWOthree", "writes are seen in place")
        check(await file.read_at(3, 3) == b"TWO", "reads are exact inside the file")
        check(await file.read_at(11, 5) == b"", "reads end at the end")
        room = memoryview(bytearray(b"." * 8))
        check(await file.read_into(6, room, ahead=1 << 20) == 5, "reads into memory return the number of bytes read")
        check(bytes(room) == b"three...", "and do not change the bytes after it")
        check(await file.read_into(11, room) == 0, "a read at the end returns nothing")
        check(await file.size() == 11, "size is the end of the last write")
        await file.sync()
        await file.close()
        again = await files.open("a/b/f")
        check(await again.read_at(0, 100) == b"oneTWOthree", "bytes outlive the open file")
        await again.close()

    async def law_many_parts_are_one_write(self) -> None:
        files = await self.make()
        file = await files.open("f", create=True)
        parts = [b"%d," % number for number in range(5000)]
        await file.write_at(10, parts)
        check(await file.read_at(0, 10) == bytes(10), "a gap reads as zeros")
        check(await file.read_at(10, 1 << 20) == b"".join(parts), "no part is lost or moved")
        await file.close()

    async def law_large_writes_are_whole(self) -> None:
        files = await self.make()
        file = await files.open("f", create=True)
        data = bytes(range(256)) * 4096
        await file.write_at(0, [data, memoryview(data)[5:], data[:7]])
        check(await file.read_at(0, 4 << 20) == data + data[5:] + data[:7], "all bytes arrive")
        await file.close()

    async def law_resize_cuts_and_extends_by_zeros(self) -> None:
        files = await self.make()
        file = await files.open("f", create=True)
        await file.write_at(0, [b"abcdef"])
        await file.resize(3)
        await file.resize(5)
        check(await file.read_at(0, 9) == b"abc\0\0", "what was cut off does not come back")
        await file.close()

    async def law_punched_blocks_read_as_zeros_and_the_rest_stays(self) -> None:
        files = await self.make()
        file = await files.open("f", create=True)
        data = b"x" * 65536
        await file.write_at(0, [data])
        await file.punch(100, 40000)
        after = await file.read_at(0, 65536)
        check(after[:100] == data[:100] and after[40000:] == data[40000:], "bytes outside the range stay")
        check(set(after[100:40000]) <= {0, ord("x")}, "bytes inside are zeros or untouched")
        check(await file.size() == 65536, "the size stays")
        await file.close()

    async def law_missing_files_are_not_opened(self) -> None:
        files = await self.make()
        await refused(files.open("missing"), FileNotFoundError)
        check(not await files.exists("missing"), "a refused open creates nothing")
        await files.unlink("missing")

    async def law_directories_list_sorted_names(self) -> None:
        files = await self.make()
        await files.make_dir("d/sub")
        await files.make_dir("d/sub")
        for name in ("b", "a", "c"):
            await (await files.open(f"d/{name}", create=True)).close()
        check(list(await files.list("d")) == ["a", "b", "c", "sub"], "names are sorted")
        check(list(await files.list("nowhere")) == [], "a missing directory is empty")
        await files.sync_dir("d")

    async def law_rename_replaces_and_open_handles_follow(self) -> None:
        files = await self.make()
        old = await files.open("old", create=True)
        new = await files.open("new", create=True)
        await old.write_at(0, [b"old"])
        await new.write_at(0, [b"new"])
        await files.rename("new", "old")
        check(await old.read_at(0, 9) == b"old", "an open handle keeps its file")
        check(not await files.exists("new"), "the source name is gone")
        replaced = await files.open("old")
        check(await replaced.read_at(0, 9) == b"new", "the target is replaced")
        for file in (old, new, replaced):
            await file.close()

    async def law_unlinked_files_are_gone(self) -> None:
        files = await self.make()
        await (await files.open("f", create=True)).close()
        await files.unlink("f")
        check(not await files.exists("f"), "the name is gone")
        await refused(files.open("f"), FileNotFoundError)

    async def law_allocated_bytes_follow_the_files(self) -> None:
        files = await self.make()
        await files.make_dir("d")
        empty_bytes = await files.allocated_bytes("d")
        check(empty_bytes < 65536, "an empty directory takes next to nothing", bytes=empty_bytes)
        file = await files.open("d/f", create=True)
        await file.write_at(0, [b"x" * 65536])
        await file.sync()
        check(await files.allocated_bytes("d") >= 65536, "written bytes are counted")
        await file.close()
        await files.unlink("d/f")
        check(await files.allocated_bytes("d") == empty_bytes, "unlinked bytes are not")

    async def law_the_disk_below_has_a_size_and_room(self) -> None:
        files = await self.make()
        total_bytes, free_bytes = await files.total_bytes(), await files.free_bytes()
        check(0 <= free_bytes <= total_bytes, "what is free is a part", total=total_bytes, free=free_bytes)
