"""Laws of ``ports.objects.Objects``."""

from __future__ import annotations

from penstock.model.errors import AlreadyExistsError
from penstock.ports.objects import Objects
from penstock.testing.conformance import check
from penstock.testing.conformance.durable_log import refused


class ObjectLaws:
    """Subclass and implement ``make``."""

    def make(self) -> Objects:
        """An empty prefix. A second call reopens the same prefix."""
        raise NotImplementedError

    async def law_what_was_put_is_read_anew(self) -> None:
        data = bytes(range(256)) * 40
        await self.make().put("a/b", data)
        objects = self.make()
        check(await objects.size("a/b") == len(data), "the size is returned")
        check(await objects.read("a/b", 0, len(data)) == data, "the whole is read")
        check(await objects.read("a/b", 300, 5) == data[300:305], "ranges are exact")
        check(await objects.read("a/b", len(data) - 2, 10) == data[-2:], "reads end at the end")
        check(await objects.read("a/b", len(data), 10) == b"", "a read at the end is empty")
        check(await objects.read("a/b", len(data) + 7, 10) == b"", "a read beyond the end is empty")
        check(await objects.read("a/b", 3, 0) == b"", "a read of 0 bytes is empty")

    async def law_putting_again_is_harmless_and_replaces(self) -> None:
        objects = self.make()
        for data in (b"a long first one", b"a long first one", b"short"):
            await objects.put("MARK", data)
            check(await objects.read("MARK", 0, 100) == data, "the last put is the object")

    async def law_a_name_is_created_once(self) -> None:
        objects = self.make()
        await objects.create("a/b", b"first")
        await refused(objects.create("a/b", b"other"), AlreadyExistsError)
        check(await objects.read("a/b", 0, 10) == b"first", "the first one stays")
        await objects.put("c", b"put")
        await refused(objects.create("c", b"other"), AlreadyExistsError)
        await objects.delete("a/b")
        await objects.create("a/b", b"again")
        check(await self.make().read("a/b", 0, 10) == b"again", "a deleted name is free")

    async def law_an_overwritten_object_has_the_new_bytes(self) -> None:
        objects = self.make()
        await objects.create("a/b", b"secret")
        check(not await objects.keeps_versions("a/b"), "nothing keeps earlier bytes")
        await objects.overwrite("a/b", b"marker")
        check(await objects.read("a/b", 0, 10) == b"marker", "the new bytes are read")
        check(dict(await objects.list("a")) == {"a/b": 6}, "there is one object")
        await refused(objects.overwrite("a/c", b"marker"), FileNotFoundError)
        await refused(objects.keeps_versions("a/c"), FileNotFoundError)
        check("a/c" not in await objects.list("a"), "a missing object is not made")

    async def law_missing_objects_are_named_as_such(self) -> None:
        objects = self.make()
        await refused(objects.read("a/b", 0, 1), FileNotFoundError)
        await refused(objects.size("a/b"), FileNotFoundError)
        await objects.delete("a/b")
        check(not await objects.list("a"), "neither of them creates anything")

    async def law_deleted_objects_are_gone(self) -> None:
        objects = self.make()
        await objects.put("a/b", b"x")
        await objects.delete("a/b")
        await refused(objects.read("a/b", 0, 1), FileNotFoundError)
        check(not await objects.list("a"), "a deleted object is not listed")

    async def law_lists_name_what_is_below_and_nothing_else(self) -> None:
        objects = self.make()
        for name in ("a/2", "a/1", "a/deep/er", "ab/3", "b"):
            await objects.put(name, name.encode())
        found = await objects.list("a")
        check(list(found.items()) == [("a/1", 3), ("a/2", 3), ("a/deep/er", 9)], "sorted, with sizes", found=found)
        check(dict(await objects.list("c")) == {}, "nothing is below what is not there")
