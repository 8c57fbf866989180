"""Operations on whole namespaces, on topics that grow, in use or held, by Pulsar's admin API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

import pytest
from pulsar_admin_world import TOPIC, N, P, S, World, play
from starlette.routing import Router

from penstock.net.http.pulsar.api import pulsar_routes


def events(count: int) -> list[bytes]:
    """Events of different lengths."""
    return [b"x" * (1 + number % 7) for number in range(count)]


async def filled(w: World) -> None:
    await w.ok("PUT", S, "earliest")
    await w.write(TOPIC, *events(10))


async def aged(w: World) -> None:
    """Ten events at second 0, ten at second 100, and now it is second 200."""
    await filled(w)
    await w.cycle(TOPIC.stream)
    w.clock.ms += 100_000
    await w.write(TOPIC, *events(10))
    await w.cycle(TOPIC.stream)
    w.clock.ms += 100_000


# --- namespaces -----------------------------------------------------------------------------------------------


async def three(w: World) -> list[str]:
    """Two topics and one of two partitions, each with 3 events and the subscriptions a and b."""
    paths = [f"/admin/v2/persistent/my-tenant/my-ns/t{number}" for number in range(3)]
    await w.ok("PUT", paths[0])
    await w.ok("PUT", paths[1])
    await w.ok("PUT", f"{paths[2]}/partitions", 2)
    for number, path in enumerate(paths):
        for sub in ("a", "b"):
            await w.ok("PUT", f"{path}/subscription/{sub}", "earliest")
        await w.write(replace(TOPIC, local=f"t{number}"), *events(3))
        if number == 2:
            await w.write(replace(TOPIC, local="t2"), *events(3), partition=1)
    return [paths[0], paths[1], f"{paths[2]}-partition-0", f"{paths[2]}-partition-1"]


def test_clear_backlog_of_a_namespace_is_all_subs_of_all_topics() -> None:
    async def story(w: World) -> None:
        paths = await three(w)
        assert (await w.ask("POST", f"{N}/clearBacklog")).status == 204
        assert [await w.backlog(sub, path) for path in paths for sub in "ab"] == [0] * 8

    play(story)


def test_clear_backlog_of_a_namespace_and_sub_fails_with_500_where_a_topic_lacks_it() -> None:
    async def story(w: World) -> None:
        paths = await three(w)
        await w.ok("POST", f"{N}/clearBacklog/a")
        assert [await w.backlog("a", path) for path in paths] == [0] * 4
        assert [await w.backlog("b", path) for path in paths] == [3] * 4
        await w.ok("PUT", P)
        assert await w.refused(500, "POST", f"{N}/clearBacklog/a") == "Cursor not found"

    play(story)


def test_clear_backlog_of_a_bundle_is_the_topics_whose_hashes_lie_in_it() -> None:
    async def story(w: World) -> None:
        paths = await three(w)
        bounds = (await w.ok("GET", f"{N}/bundles"))["boundaries"]
        assert bounds == ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
        names = [path.replace("/admin/v2/persistent/", "persistent://") for path in paths]
        bundle = [crc32(name.encode()) >> 30 for name in names]
        chosen = bundle[0]
        await w.ok("POST", f"{N}/{bounds[chosen]}_{bounds[chosen + 1]}/clearBacklog")
        assert [await w.backlog("a", path) for path in paths] == [0 if one == chosen else 3 for one in bundle]
        await w.refused(412, "POST", f"{N}/0x00000000_0x10000000/clearBacklog")
        await w.refused(412, "POST", f"{N}/nonsense/clearBacklog")

    play(story)


def test_clear_backlog_of_the_one_whole_bundle() -> None:
    async def story(w: World) -> None:
        path = "/admin/v2/namespaces/my-tenant/whole"
        await w.ok("PUT", path, {"bundles": {"numBundles": 1}})
        topic = "/admin/v2/persistent/my-tenant/whole/t"
        await w.ok("PUT", f"{topic}/subscription/a", "earliest")
        await w.write(replace(TOPIC, namespace=replace(TOPIC.namespace, namespace="whole"), local="t"), b"x")
        await w.ok("POST", f"{path}/0x00000000_0xffffffff/clearBacklog/a")
        assert await w.backlog("a", topic) == 0

    play(story)


def test_unsubscribe_in_a_namespace_removes_the_sub_wherever_it_is() -> None:
    async def story(w: World) -> None:
        paths = await three(w)
        await w.ok("PUT", P)
        assert (await w.ask("POST", f"{N}/unsubscribe/a")).status == 204
        assert [await w.ok("GET", f"{path}/subscriptions") for path in paths] == [["b"]] * 4
        assert (await w.ask("POST", f"{N}/unsubscribe/a")).status == 204

    play(story)


# --- partitions that grow -------------------------------------------------------------------------------------


def test_a_grown_topic_keeps_its_backlog_and_is_moved_as_a_whole() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/partitions", 2)
        await w.ok("PUT", S, "earliest")
        for partition in (0, 1):
            await w.write(TOPIC, *events(4), partition=partition)
        await w.ok("POST", f"{P}/partitions", 3)
        await w.write(TOPIC, *events(2), partition=2)
        stats = await w.ok("GET", f"{P}/partitioned-stats")
        assert stats["subscriptions"]["sub"]["msgBacklog"] == 10
        assert [len(part["ledgers"]) for part in (await internals(w))] == [2, 2, 1]
        reason = await w.refused(412, "POST", f"{P}-partition-0/subscription/sub/skip/1")
        assert "whole topic" in reason or "number of partitions" in reason
        await w.ok("POST", f"{S}/skip_all")
        assert (await w.ok("GET", f"{P}/partitioned-stats"))["subscriptions"]["sub"]["msgBacklog"] == 0
        await w.write(TOPIC, *events(3), partition=2)
        await w.ok("POST", f"{P}-partition-2/subscription/sub/skip/1")
        assert await w.backlog("sub", f"{P}-partition-2") == 2

    async def internals(w: World) -> list[dict]:
        return list((await w.ok("GET", f"{P}/partitioned-internalStats"))["partitions"].values())

    play(story)


# --- connected consumers, holds -------------------------------------------------------------------------------


def connected(w: World, *groups: str) -> None:
    """From here on somebody reads in each of the groups."""

    async def readers_of(scope: str, group: str) -> Sequence[str] | None:
        return ["reader-1"] if f"{scope}/{group}" in groups else None

    w.app = Router(pulsar_routes(w.controller, w.store, w.clock, readers_of=readers_of))


def test_delete_sub_topic_and_unsubscribe_with_connected_consumers_are_412_and_go_by_force() -> None:
    async def story(w: World) -> None:
        await filled(w)
        connected(w, "my-tenant.my-ns/sub")
        found = await w.ok("GET", f"{P}/stats")
        assert found["subscriptions"]["sub"]["consumers"] == [{"consumerName": "reader-1"}]
        assert await w.refused(412, "DELETE", S) == "Subscription has active connected consumers"
        await w.refused(412, "POST", f"{N}/unsubscribe/sub")
        await w.refused(412, "DELETE", P)
        assert await w.ok("GET", f"{P}/subscriptions") == ["sub"]
        await w.ok("DELETE", f"{S}?force=true")
        await w.ok("PUT", S, "latest")
        await w.ok("DELETE", f"{P}?force=true")

    play(story, topic=True)


@pytest.mark.parametrize(("seconds", "status"), [(150, 409), (100, 204), (0, 204)])
def test_expire_by_age_with_a_connected_consumer_that_is_almost_caught_up_is_409(seconds: int, status: int) -> None:
    async def story(w: World) -> None:
        await aged(w)
        connected(w, "my-tenant.my-ns/sub")
        assert (await w.ask("POST", f"{S}/expireMessages/{seconds}")).status == status

    play(story, topic=True)


def test_a_hold_refuses_truncate_and_delete_with_412_and_its_reason_and_the_topic_goes_on() -> None:
    async def story(w: World) -> None:
        await filled(w)
        hold = await w.controller.holds.add(TOPIC.stream, owner="legal", reason="case 7")
        for path in (f"{P}/truncate", P):
            assert "case 7" in await w.refused(412, "DELETE", path)
        await w.write(TOPIC, b"more")
        assert await w.backlog("sub") == 11
        await w.controller.holds.release(hold.id, owner="legal")
        await w.ok("DELETE", P)

    play(story, topic=True)
