"""Moving a subscription by Pulsar's admin API moves its readers too, while none of them is online."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID, uuid5

import pytest
from pulsar_admin_world import TOPIC, N, P, S, World, opened
from starlette.routing import Router

from penstock.app.serving import move_readers
from penstock.client.store import AsyncStore
from penstock.model.policies import ReaderGroupRetention
from penstock.net.http.pulsar.api import pulsar_routes
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.testing.fakes import SeededRng
from penstock.testing.simulation.machine.loop import SimLoop

GROUP = "my-tenant.my-ns/sub"


class Readers:
    """The store's own clients, beside the admin API."""

    def __init__(self, w: World) -> None:
        self.store = AsyncStore(w.store, w.controller, w.clock, SeededRng(SimLoop(1).fork("readers")))
        move = partial(move_readers, self.store, w.controller)
        w.app = Router(pulsar_routes(w.controller, w.store, w.clock, move_readers=move))

    async def read(self, count: int, *, publish: bool = True) -> list[bytes]:
        """What a reader of the subscription gets next; it leaves again."""
        group = await self.store.open_reader_group(GROUP)
        found: list[bytes] = []
        async with group.reader("r") as reader:
            while len(found) < count:
                event = await reader.read(timeout_s=20)
                assert event is not None
                found.append(event.data)
        if publish:
            await group.publish(await group.positions())
        return found


async def spark_group(w: World) -> None:
    """A subscriber of the name ``spark``, as a query makes it."""
    made = ReaderGroupConfig(
        scope="my-tenant.my-ns",
        name="spark",
        id=uuid5(UUID(int=7), "q"),
        retention=ReaderGroupRetention.MANUAL,
        start_cuts={TOPIC.stream: await w.controller.cuts.head(TOPIC.stream)},
    )
    await w.controller.groups.create(made)


def story_of(story: Callable[[World, Readers], Awaitable[None]]) -> None:
    """Run a story in a world of its own, in virtual time: a reader counts as online until it was silent for its lease."""

    async def run() -> None:
        async with opened(topic=True) as w:
            await w.ok("PUT", S, "earliest")
            await w.write(TOPIC, *[b"%d" % number for number in range(10)])
            await story(w, Readers(w))

    SimLoop(1).run(run())


@pytest.mark.parametrize(
    ("call", "body", "left"),
    [
        ("skip_all", None, []),
        ("skip/3", None, [6, 7, 8, 9]),
        ("resetcursor", "earliest", list(range(10))),
        ("resetcursor", "latest", []),
        ("resetcursor/0", None, list(range(10))),
    ],
)
def test_readers_continue_where_a_call_has_moved_the_subscription(call: str, body: Any, left: list[int]) -> None:
    async def story(w: World, readers: Readers) -> None:
        assert await readers.read(3) == [b"0", b"1", b"2"]
        await w.ok("POST", f"{S}/{call}", *(() if body is None else (body,)))
        assert await w.backlog("sub") == len(left)
        assert await readers.read(len(left)) == [b"%d" % number for number in left]
        tail = await w.controller.cuts.tail(TOPIC.stream)
        assert await (await readers.store.open_reader_group(GROUP)).positions() == {TOPIC.stream: tail}

    story_of(story)


def test_a_position_moves_readers_forwards_and_back() -> None:
    async def story(w: World, readers: Readers) -> None:
        await readers.read(9)
        ledger = int((await w.ok("GET", f"{P}/internalStats"))["ledgers"][0]["ledgerId"])
        for entry in (2, 7):
            await w.ok("POST", f"{S}/resetcursor", {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1})
            assert await readers.read(1, publish=False) == [b"%d" % entry]

    story_of(story)


def test_readers_that_are_online_refuse_a_move_with_412_and_nothing_is_changed() -> None:
    async def story(w: World, readers: Readers) -> None:
        group = await readers.store.open_reader_group(GROUP)
        async with group.reader("busy") as reader:
            assert await reader.read(timeout_s=5)
            for call in ("skip_all", "skip/3", "resetcursor"):
                reason = await w.refused(412, "POST", f"{S}/{call}", *(("latest",) if call == "resetcursor" else ()))
                assert "busy" in reason
            assert await w.backlog("sub") == 10

    story_of(story)


def test_a_namespace_is_cleared_but_for_subscriptions_with_readers_online_which_are_named() -> None:
    async def story(w: World, readers: Readers) -> None:
        await w.ok("PUT", f"{P}/subscription/other", "earliest")
        await w.ok("PUT", f"{P}/subscription/a", "earliest")
        group = await readers.store.open_reader_group(GROUP.replace("sub", "other"))
        async with group.reader("busy"):
            reason = await w.refused(412, "POST", f"{N}/clearBacklog")
        assert "my-ns/other" in reason
        assert [await w.backlog(name) for name in ("a", "other", "sub")] == [0, 10, 0]

    story_of(story)


def test_the_subscription_of_a_spark_query_is_refused_with_412_and_what_to_do() -> None:
    async def story(w: World, readers: Readers) -> None:
        await spark_group(w)
        reason = await w.refused(412, "POST", f"{P}/subscription/spark/skip_all")
        assert "checkpoint" in reason
        assert await w.backlog("spark") == 10

    story_of(story)


def test_expiry_and_truncation_move_no_reader() -> None:
    async def story(w: World, readers: Readers) -> None:
        assert await readers.read(3) == [b"0", b"1", b"2"]
        await w.ok("POST", f"{S}/expireMessages/0")
        assert await w.backlog("sub") == 0
        assert await readers.read(1, publish=False) == [b"3"]
        await w.ok("DELETE", f"{P}/truncate")
        assert await w.ok("GET", f"{P}/subscriptions") == ["sub"]

    story_of(story)


def test_a_subscription_made_here_is_no_group_of_a_spark_query_nor_the_other_way_round() -> None:
    async def story(w: World, readers: Readers) -> None:
        (info,) = await w.controller.subscribers.describe(TOPIC.stream)
        assert info.owner == "reader group"
        await spark_group(w)
        await w.ok("PUT", "/admin/v2/persistent/my-tenant/my-ns/other")
        assert "another client" in await w.refused(
            409, "PUT", "/admin/v2/persistent/my-tenant/my-ns/other/subscription/spark", "latest"
        )

    story_of(story)
