"""Laws of the Pulsar facade: positions against a model, and changes by two servers at once."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_admin_world import NS, TENANT, TOPIC, N, P, World, opened, play
from starlette.routing import Router

from penstock.model.names import segment_name
from penstock.model.segments import make_segment_id
from penstock.net.http.pulsar.api import pulsar_routes
from penstock.net.http.pulsar.records import Records

S = f"{P}/subscription/sub"
SEGMENT = make_segment_id(0, 0)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.integers(0, 40), min_size=1, max_size=8)),
        st.tuples(st.just("skip"), st.integers(0, 12)),
        st.tuples(st.just("reset"), st.integers(0, 40)),
        st.tuples(st.just("expire"), st.integers(0, 40)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("truncate"), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=20, deadline=None)
@given(steps=STEPS)
def test_positions_and_backlogs_are_those_of_a_list_of_events(steps: list[tuple[str, object]]) -> None:
    """The model: ``sizes`` of all events ever written, from where they can be read, and where the subscription is."""

    async def story(w: World) -> None:
        # Nothing goes by itself, so that the head is where the model has it.
        await w.ok("POST", f"{N}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        await w.ok("PUT", S, "earliest")
        sizes: list[int] = []
        head = at = 0
        for verb, given_one in steps:
            number = given_one if isinstance(given_one, int) else 0
            entry = {"ledgerId": SEGMENT, "entryId": number, "partitionIndex": -1}
            if isinstance(given_one, list):
                await w.write(TOPIC, *[b"x" * size for size in given_one])
                sizes += given_one
            elif verb == "skip":
                await w.ok("POST", f"{S}/skip/{number}")
                at = min(at + number, len(sizes))
            elif verb == "reset":
                status = (await w.ask("POST", f"{S}/resetcursor", entry)).status
                assert status == (204 if number <= len(sizes) else 412)
                at = max(head, number) if status == 204 else at
            elif verb == "expire":
                status = (await w.ask("POST", f"{S}/expireMessages", entry)).status
                assert status == (204 if number <= len(sizes) and at < len(sizes) else 409)
                at = max(at, min(number + 1, len(sizes))) if status == 204 else at
            elif verb == "flush":
                await w.store.flush()
            else:
                await w.ok("DELETE", f"{P}/truncate")
                head = at = len(sizes)
            stats = await w.ok("GET", f"{P}/stats")
            own = stats["subscriptions"]["sub"]
            assert own["msgBacklog"] == len(sizes) - at
            assert own["backlogSize"] == sum(size + 8 for size in sizes[at:])
            assert stats["storageSize"] == sum(size + 8 for size in sizes[head:])
            internal = await w.ok("GET", f"{P}/internalStats")
            assert internal["cursors"]["sub"]["markDeletePosition"] == f"{SEGMENT}:{at - 1}"
            assert internal["lastConfirmedEntry"] == f"{SEGMENT}:{len(sizes) - 1}"
        for place in range(head, len(sizes) + 1):
            asked = {"ledgerId": SEGMENT, "entryId": place}
            assert await w.ok("PUT", f"{P}/backlogSize", asked) == sum(size + 8 for size in sizes[place:])

    play(story, topic=True)


def test_two_servers_that_subscribe_topics_at_once_lose_none() -> None:
    async def story(w: World) -> None:
        topics = [f"{P}{number}" for number in range(6)]
        servers = [Router(pulsar_routes(w.controller, w.store, w.clock)) for _ in topics]
        for topic in topics:
            await w.ok("PUT", topic)

        async def subscribe(server: Router, topic: str) -> None:
            other = World(w.store, w.controller, w.clock, server)
            await other.ok("PUT", f"{topic}/subscription/same", "earliest")

        await asyncio.gather(*(subscribe(server, topic) for server, topic in zip(servers, topics, strict=True)))
        for topic in topics:
            assert await w.ok("GET", f"{topic}/subscriptions") == ["same"]
        group = await w.controller.groups.get(NS.scope, "same")
        assert len(group.start_cuts) == len(topics)

        async def leave(server: Router, topic: str) -> None:
            await World(w.store, w.controller, w.clock, server).ok("DELETE", f"{topic}/subscription/same")

        await asyncio.gather(*(leave(server, topic) for server, topic in zip(servers, topics, strict=True)))
        assert await w.controller.groups.list(NS.scope) == []

    play(story)


def test_two_servers_that_start_at_once_make_one_public_tenant() -> None:
    async def run() -> None:
        async with opened(namespace=False) as w:
            servers = [Router(pulsar_routes(w.controller, w.store, w.clock)) for _ in range(4)]
            asks = [World(w.store, w.controller, w.clock, server).ok("GET", "/admin/v2/tenants") for server in servers]
            assert await asyncio.gather(*asks) == [["public"]] * 4
            assert await w.ok("GET", "/admin/v2/namespaces/public") == ["public/default"]

    asyncio.run(run())


def test_changes_of_one_record_by_many_are_all_kept() -> None:
    async def story(w: World) -> None:
        records = [Records(w.store) for _ in range(8)]

        async def count(one: Records) -> None:
            await one.change(b"x/count", lambda record: {"n": record.get("n", 0) + 1})

        await asyncio.gather(*(count(one) for one in records))
        assert await records[0].get(b"x/count") == {"n": 8}
        assert await records[0].under(b"x/") == [("count", {"n": 8})]

    play(story)


def test_policies_set_at_once_through_one_server_are_all_in_force() -> None:
    async def story(w: World) -> None:
        await asyncio.gather(
            w.ok("POST", f"{N}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}),
            w.ok("POST", f"{N}/messageTTL", 30),
            w.ok("POST", f"{N}/subscriptionExpirationTime", 5),
            w.ok("POST", f"{N}/backlogQuota", {"limitSize": 9, "policy": "producer_exception"}),
            w.ok(
                "POST",
                f"{N}/backlogQuota?backlogQuotaType=message_age",
                {"limitTime": 8, "policy": "producer_exception"},
            ),
        )
        document = await w.controller.policies.get(NS.scope)
        assert (document.retain.min_age_s, document.retain.min_bytes) == (60, 2 << 20)
        assert (document.backlog.ttl_s, document.backlog.max_bytes, document.backlog.max_age_s) == (30, 9, 8)
        assert document.idle.subscriber_s == 300
        assert set(await w.ok("GET", f"{N}/backlogQuotaMap")) == {"destination_storage", "message_age"}

    play(story)


def test_the_store_is_asked_by_name_of_the_segment_that_a_partition_is() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/partitions", 3)
        current = await w.controller.layout.current(TOPIC.stream)
        await w.write(TOPIC, b"abc", partition=2)
        info = await w.store.info(segment_name(TOPIC.stream, current[2].segment))
        stats = await w.ok("GET", f"{P}-partition-2/stats")
        assert (stats["storageSize"], stats["msgInCounter"]) == (info.length, 1)
        assert TENANT["allowedClusters"] == (await w.ok("GET", "/admin/v2/clusters"))

    play(story)
