"""Laws of ``ports.cluster.coordination.Coordination``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing

from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidArgumentError,
    NodeChangedError,
    NodeNotFoundError,
    NotEmptyError,
    PenstockError,
    SessionEndedError,
)
from penstock.ports.cluster.coordination import MAX_NODE_BYTES, Change, Check, Coordination, Create, Delete, Node, Set
from penstock.testing.conformance import check
from penstock.testing.conformance.durable_log import refused


class CoordinationLaws:
    """Subclass and implement ``open`` and ``expire``."""

    def open(self) -> AbstractAsyncContextManager[Coordination]:
        """A new session in the namespace of this instance, which is empty at first."""
        raise NotImplementedError

    async def expire(self, session: Coordination) -> None:
        """End the session from outside, as if it had not been heard of; return once the coordinator has ended it."""
        raise NotImplementedError

    async def law_what_was_created_is_read_by_everybody(self) -> None:
        async with self.open() as one, self.open() as other:
            await one.create("a", b"first")
            await one.create("a/b", b"")
            check(await one.read("a") == Node(data=b"first", version=0), "a session reads its own changes")
            await other.sync()
            check(await other.read("a") == Node(data=b"first", version=0), "others read them after a sync")
            check(await other.read("a/b") == Node(data=b"", version=0), "a node may be empty")

    async def law_a_node_is_created_once_below_one_that_exists(self) -> None:
        async with self.open() as one:
            await one.create("a", b"first")
            await refused(one.create("a", b"second"), AlreadyExistsError)
            await refused(one.register("a", b"second"), AlreadyExistsError)
            await refused(one.create("b/c", b""), NodeNotFoundError)
            check((await one.read("a")).data == b"first", "a refused creation changes nothing")

    async def law_missing_nodes_raise_node_not_found(self) -> None:
        async with self.open() as one:
            for call in (one.read("a"), one.members("a"), one.set("a", b"", 0), one.delete("a", 0)):
                await refused(call, NodeNotFoundError)
            check(list(await one.members("")) == [], "an empty namespace has no members")

    async def law_a_set_compares_the_version(self) -> None:
        async with self.open() as one, self.open() as other:
            await one.create("a", b"0")
            check(await one.set("a", b"1", 0) == 1, "a set returns the new version")
            check(await other.set("a", b"2", 1) == 2, "a version counts for all sessions")
            await refused(one.set("a", b"late", 1), NodeChangedError)
            await refused(one.set("a", b"early", 3), NodeChangedError)
            await one.sync()
            check(await one.read("a") == Node(data=b"2", version=2), "a refused set changes nothing")

    async def law_one_of_many_changes_at_one_version_succeeds(self) -> None:
        async with self.open() as one, self.open() as other:
            await one.create("a", b"")
            for version in range(5):
                results = await asyncio.gather(
                    *(outcome(session.set("a", b"same for all", version)) for session in (one, other) for _ in range(3))
                )
                check(results.count(version + 1) == 1, "one set succeeds", results=results)
                check(results.count(NodeChangedError) == 5, "the others are refused", results=results)

    async def law_one_of_many_creations_succeeds(self) -> None:
        async with self.open() as one, self.open() as other:
            for number in range(5):
                results = await asyncio.gather(
                    *(outcome(s.create(f"n{number}", b"same")) for s in (one, other) for _ in range(2))
                )
                check(results.count(None) == 1, "one creation succeeds", results=results)
                check(results.count(AlreadyExistsError) == 3, "the others are refused", results=results)

    async def law_a_delete_compares_the_version_and_needs_an_empty_node(self) -> None:
        async with self.open() as one:
            await one.create("a", b"")
            await one.create("a/b", b"")
            await refused(one.delete("a", 0), NotEmptyError)
            await one.set("a/b", b"1", 0)
            await refused(one.delete("a/b", 0), NodeChangedError)
            await one.delete("a/b", 1)
            await one.delete("a", 0)
            await refused(one.read("a"), NodeNotFoundError)
            await one.create("a", b"again")
            check(await one.read("a") == Node(data=b"again", version=0), "versions begin again")

    async def law_members_are_the_names_directly_below(self) -> None:
        async with self.open() as one:
            for path in ("b", "a", "a/2", "a/10", "a/2/deep", "ab"):
                await one.create(path, b"")
            await one.register("a/here", b"")
            check(list(await one.members("a")) == ["10", "2", "here"], "sorted, without what lies deeper")
            check(list(await one.members("")) == ["a", "ab", "b"], "the root has members")

    async def law_all_changes_are_made_or_none(self) -> None:
        async with self.open() as one:
            await one.create("map", b"0")
            versions = await one.multi([Create("a", b""), Create("a/b", b""), Set("map", b"1", 0), Check("a", 0)])
            check(list(versions) == [0, 0, 1, 0], "the versions after the changes", versions=versions)
            late: list[Change] = [Create("c", b""), Set("map", b"2", 1), Delete("a/b", 0), Check("map", 1)]
            await refused(one.multi(late), NodeChangedError)
            await refused(one.multi([Create("c", b""), Delete("a", 0)]), NotEmptyError)
            await refused(one.multi([Set("map", b"2", 1), Check("x", 0)]), NodeNotFoundError)
            check(await one.read("map") == Node(data=b"1", version=1), "a refused set of changes changes nothing")
            check(list(await one.members("")) == ["a", "map"], "nor does it create anything")
            check(list(await one.multi([])) == [], "no changes are no error")
            moved = await one.multi([Set("map", b"3", 1), Set("map", b"4", 2), Delete("a/b", 0), Delete("a", 0)])
            check(list(moved) == [2, 3, 0, 0], "a change sees those before it", moved=moved)

    async def law_registrations_end_with_their_session(self) -> None:
        async with self.open() as other:
            await other.create("stores", b"")
            async with self.open() as one:
                await one.register("stores/1", b"here")
                await refused(one.create("stores/1/below", b""), ConflictError)
                await other.sync()
                check(list(await other.members("stores")) == ["1"], "a registration is a member")
                check(await other.set("stores/1", b"there", 0) == 1, "its data can be changed")
            await until(other, "stores", lambda: has_members(other, "stores", []))
            await other.register("stores/1", b"another")

    async def law_an_ended_session_refuses_all_calls(self) -> None:
        async with self.open() as other, self.open() as one:
            await other.create("stores", b"")
            await one.register("stores/1", b"")
            check(not one.session().ended, "a session begins alive")
            await self.expire(one)
            await one.ended()
            await other.sync()
            check(list(await other.members("stores")) == [], "registrations are deleted before the end is known")
            check(one.session().ended, "the session knows its end")
            for call in (one.read("stores"), one.members(""), one.create("late", b""), one.sync(), one.multi([])):
                await refused(call, SessionEndedError)
            check(list(await other.members("")) == ["stores"], "an ended session changes nothing")
            await one.close()

    async def law_the_end_of_a_session_ends_its_notices(self) -> None:
        async with self.open() as one:
            await one.create("a", b"")
            async with aclosing(one.notices("a")) as notices:
                await anext(notices)
                waiting = asyncio.ensure_future(anext(notices))
                await self.expire(one)
                while not (done := await outcome(waiting)):  # it may stand for no change
                    waiting = asyncio.ensure_future(anext(notices))
                check(done is SessionEndedError, "a task that waits for a notice learns of the end", done=done)

    async def law_a_closed_session_is_ended(self) -> None:
        async with self.open() as one:
            await one.close()
            await one.ended()
            check(one.session().ended, "the session is closed")
            await refused(one.read("a"), SessionEndedError)
            await one.close()

    async def law_a_change_after_a_notice_leads_to_another(self) -> None:
        async with self.open() as one, self.open() as other:
            await other.create("a", b"0")
            await one.sync()
            async with aclosing(one.notices("a")) as notices:
                await anext(notices)
                for version in range(20):
                    await other.set("a", b"%d" % (version + 1), version)
                    async for _ in notices:
                        if (await one.read("a")).version == version + 1:
                            break

    async def law_reading_after_each_notice_misses_no_change(self) -> None:
        last = 50
        async with self.open() as one, self.open() as other:
            await other.create("a", b"")

            async def change() -> None:
                for version in range(last):
                    await other.set("a", b"", version)

            changing = asyncio.ensure_future(change())
            await until(one, "a", lambda: has_version(one, "a", last))
            await changing

    async def law_notices_report_creation_deletion_and_names_below(self) -> None:
        async with self.open() as one, self.open() as other:
            async with aclosing(one.notices("a")) as notices:
                steps: list[tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[bool]]]] = [
                    (lambda: other.create("a", b""), lambda: has_members(one, "a", [])),
                    (lambda: other.create("a/b", b""), lambda: has_members(one, "a", ["b"])),
                    (lambda: other.register("a/c", b""), lambda: has_members(one, "a", ["b", "c"])),
                    (lambda: other.delete("a/b", 0), lambda: has_members(one, "a", ["c"])),
                    (lambda: other.delete("a/c", 0), lambda: has_members(one, "a", [])),
                    (lambda: other.delete("a", 0), lambda: is_missing(one, "a")),
                ]
                await anext(notices)
                for make, seen in steps:
                    await make()
                    async for _ in notices:
                        if await seen():
                            break
            async with aclosing(one.notices("")) as notices:
                await anext(notices)
                await other.create("z", b"")
                async for _ in notices:
                    if await has_members(one, "", ["z"]):
                        break

    async def law_sync_makes_others_changes_visible(self) -> None:
        async with self.open() as one, self.open() as other:
            await one.create("a", b"")
            for version in range(20):
                await one.set("a", b"", version)
                await other.sync()
                found = (await other.read("a")).version
                check(found == version + 1, "a sync brings what returned before it", found=found, wanted=version + 1)

    async def law_the_lease_of_a_session_in_use_grows(self) -> None:
        async with self.open() as one, self.open() as other:
            check(one.session().id != other.session().id, "each session has an id of its own")
            before = one.session().lease_end_s
            await one.sync()
            check(one.session().lease_end_s >= before, "an answered call never shortens the lease")
            await one.close()
            check(one.session().lease_end_s == -math.inf, "a session that is known to have ended has no lease")

    async def law_paths_and_sizes_are_checked(self) -> None:
        async with self.open() as one:
            for path in ("/a", "a/", "a//b", ".", "a/..", "a\n", "a\x00"):
                await refused(one.read(path), InvalidArgumentError)
                await refused(one.create(path, b""), InvalidArgumentError)
            await refused(one.create("", b""), InvalidArgumentError)
            await refused(one.create("a", bytes(MAX_NODE_BYTES + 1)), InvalidArgumentError)
            await one.create("a", bytes(MAX_NODE_BYTES))
            check(len((await one.read("a")).data) == MAX_NODE_BYTES, "the largest node fits")


async def outcome(call: Awaitable[object]) -> object:
    """The result of a call, or the class of the error that it raises on purpose."""
    try:
        return await call
    except PenstockError as error:
        return type(error)


async def until(session: Coordination, path: str, holds: Callable[[], Awaitable[bool]]) -> None:
    """Read after each notice at the path, until it holds."""
    async with aclosing(session.notices(path)) as notices:
        async for _ in notices:
            if await holds():
                return


async def has_members(session: Coordination, path: str, names: list[str]) -> bool:
    return await outcome(session.members(path)) == names


async def has_version(session: Coordination, path: str, version: int) -> bool:
    return (await session.read(path)).version == version


async def is_missing(session: Coordination, path: str) -> bool:
    return await outcome(session.read(path)) is NodeNotFoundError
