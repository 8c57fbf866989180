"""Operations by Pulsar's admin API, each named after its row in Pulsar's table of manual operations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pulsar_admin_world import TOPIC, N, P, World, play

from penstock.model.policies import ReaderGroupRetention
from penstock.model.segments import make_segment_id
from penstock.ports.control.groups import ReaderGroupConfig

S = f"{P}/subscription/sub"
SEGMENT = make_segment_id(0, 0)
LONG_MAX = 2**63 - 1


def events(count: int, start: int = 0) -> list[bytes]:
    """Events of different lengths."""
    return [b"x" * (1 + number % 7) for number in range(start, start + count)]


async def filled(w: World, count: int = 10) -> None:
    await w.ok("PUT", S, "earliest")
    await w.write(TOPIC, *events(count))


def at(entry: int, ledger: int = SEGMENT, partition: int = -1, **more: object) -> dict[str, object]:
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": partition, **more}


async def mark(w: World, topic: str = P) -> str:
    cursors = (await w.ok("GET", f"{topic}/internalStats"))["cursors"]
    return str(cursors["sub"]["markDeletePosition"])


# --- clear, skip ----------------------------------------------------------------------------------------------


def test_clear_sub_goes_to_the_end() -> None:
    async def story(w: World) -> None:
        await filled(w)
        assert (await w.ask("POST", f"{S}/skip_all")).status == 204
        assert await w.backlog("sub") == 0
        assert await mark(w) == f"{SEGMENT}:9"
        await w.refused(404, "POST", f"{P}/subscription/none/skip_all")
        await w.refused(404, "POST", f"{P}x/subscription/sub/skip_all")

    play(story, topic=True)


def test_clear_sub_of_a_partitioned_topic_is_all_partitions_and_of_a_partition_that_one() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/partitions", 2)
        await w.ok("PUT", S, "earliest")
        await w.write(TOPIC, *events(3), partition=0)
        await w.write(TOPIC, *events(5), partition=1)
        await w.ok("POST", f"{P}-partition-1/subscription/sub/skip_all")
        assert await w.backlog("sub", f"{P}-partition-0") == 3
        assert await w.backlog("sub", f"{P}-partition-1") == 0
        await w.ok("POST", f"{S}/skip_all")
        assert await w.backlog("sub", f"{P}-partition-0") == 0

    play(story)


def test_skip_n_passes_exactly_n() -> None:
    async def story(w: World) -> None:
        await filled(w)
        for count, left in ((1, 9), (3, 6), (0, 6), (-1, 6), (99, 0), (1, 0)):
            assert (await w.ask("POST", f"{S}/skip/{count}")).status == 204
            assert await w.backlog("sub") == left
        assert (await w.ask("POST", f"{S}/skip/abc")).status == 404

    play(story, topic=True)


def test_skip_n_walks_events_of_any_size_and_blocks_that_are_tiered() -> None:
    async def story(w: World) -> None:
        await filled(w, 20)
        await w.write(TOPIC, b"y" * (3 << 20), b"", b"z")
        await w.store.flush()
        await w.write(TOPIC, *events(4))
        for count, left in ((7, 20), (13, 7), (1, 6), (1, 5), (2, 3)):
            await w.ok("POST", f"{S}/skip/{count}")
            assert await w.backlog("sub") == left

    play(story, topic=True)


def test_skip_n_on_a_partitioned_parent_is_405() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/partitions", 2)
        await w.ok("PUT", S, "earliest")
        await w.write(TOPIC, *events(5), partition=1)
        await w.refused(405, "POST", f"{S}/skip/1")
        await w.ok("POST", f"{P}-partition-1/subscription/sub/skip/2")
        assert await w.backlog("sub", f"{P}-partition-1") == 3

    play(story)


# --- expire ---------------------------------------------------------------------------------------------------


async def aged(w: World) -> None:
    """Ten events at second 0, ten at second 100, and now it is second 200."""
    await filled(w)
    await w.cycle(TOPIC.stream)
    w.clock.ms += 100_000
    await w.write(TOPIC, *events(10))
    await w.cycle(TOPIC.stream)
    w.clock.ms += 100_000


@pytest.mark.parametrize(("seconds", "left"), [(250, 20), (150, 10), (50, 0), (0, 0), (-1, 0)])
def test_expire_by_age_acknowledges_what_is_older(seconds: int, left: int) -> None:
    async def story(w: World) -> None:
        await aged(w)
        assert (await w.ask("POST", f"{S}/expireMessages/{seconds}")).status == 204
        assert await w.backlog("sub") == left

    play(story, topic=True)


def test_expire_by_age_never_moves_backwards() -> None:
    async def story(w: World) -> None:
        await aged(w)
        await w.ok("POST", f"{S}/skip/15")
        await w.ok("POST", f"{S}/expireMessages/150")
        assert await w.backlog("sub") == 5

    play(story, topic=True)


def test_expire_by_age_of_a_sub_without_backlog_is_409() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", S, "latest")
        for seconds in (60, 0, -1):
            reason = await w.refused(409, "POST", f"{S}/expireMessages/{seconds}")
            assert reason.startswith(
                "Expire message by timestamp not issued on topic persistent://my-tenant/my-ns/my-topic"
            )
            assert "due to ongoing message expiration not finished or subscription almost catch up" in reason
        await w.refused(404, "POST", f"{P}/subscription/none/expireMessages/60")
        await w.refused(405, "POST", S.replace("/persistent/", "/non-persistent/") + "/expireMessages/60")

    play(story, topic=True)


def test_expire_by_age_of_all_subs() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/subscription/other", "earliest")
        await aged(w)
        await w.ok("POST", f"{P}/subscription/other/skip/12")
        assert (await w.ask("POST", f"{P}/all_subscription/expireMessages/150")).status == 204
        assert await w.backlog("sub") == 10
        assert await w.backlog("other") == 8
        await w.refused(
            405, "POST", P.replace("/persistent/", "/non-persistent/") + "/all_subscription/expireMessages/9"
        )

    play(story, topic=True)


def test_expire_to_position() -> None:
    async def story(w: World) -> None:
        await filled(w)
        await w.ok("POST", f"{S}/expireMessages", at(3))
        assert await w.backlog("sub") == 6
        await w.ok("POST", f"{S}/expireMessages", at(5, isExcluded=True))
        assert await w.backlog("sub") == 5
        await w.ok("POST", f"{S}/expireMessages", at(1))
        assert await w.backlog("sub") == 5
        await w.refused(409, "POST", f"{S}/expireMessages", at(11))
        await w.refused(409, "POST", f"{S}/expireMessages", at(1, ledger=99))
        await w.refused(412, "POST", f"{S}/expireMessages", at(7, partition=3))
        await w.refused(400, "POST", f"{S}/expireMessages")
        await w.ok("POST", f"{S}/skip_all")
        await w.refused(409, "POST", f"{S}/expireMessages", at(9))

    play(story, topic=True)


def test_expire_to_position_on_a_partitioned_parent_is_405() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/partitions", 2)
        await w.ok("PUT", S, "earliest")
        await w.write(TOPIC, *events(5), partition=1)
        await w.refused(405, "POST", f"{S}/expireMessages", at(1))
        second = make_segment_id(0, 1)
        path = f"{P}-partition-1/subscription/sub/expireMessages"
        await w.refused(412, "POST", path, at(1, ledger=second))
        await w.ok("POST", path, at(1, ledger=second, partition=1))
        assert await w.backlog("sub", f"{P}-partition-1") == 3

    play(story)


# --- reset ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("second", "left"), [(-50, 20), (50, 10), (150, 0), (100, 0), (999, 0)])
def test_reset_by_time(second: int, left: int) -> None:
    async def story(w: World) -> None:
        begin = w.clock.ms
        await aged(w)
        await w.ok("POST", f"{S}/skip/7")
        assert (await w.ask("POST", f"{S}/resetcursor/{begin + second * 1000}")).status == 204
        assert await w.backlog("sub") == left
        await w.refused(404, "POST", f"{P}/subscription/none/resetcursor/1")

    play(story, topic=True)


def test_reset_by_time_is_to_the_first_available_where_nothing_is_older() -> None:
    async def story(w: World) -> None:
        await filled(w)
        await w.ok("POST", f"{S}/skip_all")
        await w.ok("POST", f"{S}/resetcursor/1000")
        assert await w.backlog("sub") == 10

    play(story, topic=True)


def test_reset_by_time_of_a_partitioned_topic_is_all_partitions_and_of_a_partition_that_one() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/partitions", 2)
        await w.ok("PUT", S, "earliest")
        begin = w.clock.ms
        for partition in (0, 1):
            await w.write(TOPIC, *events(4), partition=partition)
        await w.ok("POST", f"{S}/skip_all")
        await w.ok("POST", f"{P}-partition-0/subscription/sub/resetcursor/{begin - 1000}")
        assert await w.backlog("sub", f"{P}-partition-0") == 4
        assert await w.backlog("sub", f"{P}-partition-1") == 0
        await w.ok("POST", f"{S}/resetcursor/{begin - 1000}")
        assert await w.backlog("sub", f"{P}-partition-1") == 4

    play(story)


def test_reset_to_position_forwards_and_backwards() -> None:
    async def story(w: World) -> None:
        await filled(w)
        for body, left in (
            (at(3), 7),
            (at(3, isExcluded=True), 6),
            (at(3, excluded=True), 6),
            (at(0), 10),
            (at(10), 0),
            (at(-1, ledger=-1), 10),
            (at(LONG_MAX, ledger=LONG_MAX), 0),
        ):
            await w.ok("POST", f"{S}/resetcursor", body)
            assert await w.backlog("sub") == left
        await w.refused(412, "POST", f"{S}/resetcursor", at(0, ledger=77))
        await w.refused(412, "POST", f"{S}/resetcursor", at(99))
        await w.refused(404, "POST", f"{P}/subscription/none/resetcursor", at(0))

    play(story, topic=True)


def test_reset_to_position_on_a_partitioned_parent_is_405_except_to_its_ends() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/partitions", 2)
        await w.ok("PUT", S, "latest")
        await w.write(TOPIC, *events(3), partition=0)
        await w.refused(405, "POST", f"{S}/resetcursor", at(1))
        await w.ok("POST", f"{S}/resetcursor", at(-1, ledger=-1))
        assert await w.backlog("sub", f"{P}-partition-0") == 3
        await w.ok("POST", f"{P}-partition-0/subscription/sub/resetcursor", at(2))
        assert await w.backlog("sub", f"{P}-partition-0") == 1

    play(story)


# --- create, delete -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "left"), [("earliest", 10), ("latest", 0), (at(4), 6), (at(-1, ledger=-1), 10)])
def test_create_sub_at_a_position(start: object, left: int) -> None:
    async def story(w: World) -> None:
        await w.write(TOPIC, *events(10))
        assert (await w.ask("PUT", S, start)).status == 204
        assert await w.backlog("sub") == left
        assert await w.ok("GET", f"{P}/subscriptions") == ["sub"]
        await w.refused(409, "PUT", S, start)

    play(story, topic=True)


def test_create_sub_without_a_body_is_at_the_latest() -> None:
    async def story(w: World) -> None:
        await w.write(TOPIC, *events(10))
        await w.ok("PUT", S)
        assert await w.backlog("sub") == 0

    play(story, topic=True)


def test_create_sub_creates_the_topic() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", S, "latest")
        assert await w.ok("GET", "/admin/v2/persistent/my-tenant/my-ns") == [str(TOPIC)]
        await w.refused(404, "PUT", S.replace("my-ns", "none"), "latest")

    play(story)


def test_create_sub_at_no_position_is_412() -> None:
    async def story(w: World) -> None:
        await w.refused(412, "PUT", S, at(0, ledger=5))
        assert await w.ok("GET", f"{P}/subscriptions") == []

    play(story, topic=True)


def test_delete_sub() -> None:
    async def story(w: World) -> None:
        await filled(w)
        assert (await w.ask("DELETE", S)).status == 204
        assert await w.ok("GET", f"{P}/subscriptions") == []
        await w.refused(404, "DELETE", S)
        await w.ok("PUT", S, "earliest")
        assert await w.backlog("sub") == 10
        await w.ok("DELETE", f"{S}?force=true")

    play(story, topic=True)


def test_a_sub_of_one_topic_is_not_that_of_another() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}2")
        other = replace(TOPIC, local="my-topic2")
        await filled(w)
        await w.write(other, *events(5))
        await w.ok("PUT", f"{P}2/subscription/sub", "earliest")
        await w.ok("POST", f"{S}/skip/4")
        await w.ok("POST", f"{P}2/subscription/sub/skip/1")
        assert await w.backlog("sub") == 6
        assert await w.backlog("sub", f"{P}2") == 4
        await w.ok("DELETE", S)
        assert await w.ok("GET", f"{P}/subscriptions") == []
        assert await w.backlog("sub", f"{P}2") == 4

    play(story, topic=True)


@pytest.mark.parametrize("name", ["a_b", "sub%2Fwith%20all%3F", "%C3%BC", "a.b..c."])
def test_subs_and_topics_have_any_name(name: str) -> None:
    async def story(w: World) -> None:
        topic = f"/admin/v2/persistent/my-tenant/my-ns/{name}"
        await w.ok("PUT", topic)
        await w.ok("PUT", f"{topic}/subscription/{name}", "latest")
        from urllib.parse import unquote

        assert await w.ok("GET", f"{topic}/subscriptions") == [unquote(name)]
        assert await w.ok("GET", f"{N}/topics") == [f"persistent://my-tenant/my-ns/{unquote(name)}"]
        await w.ok("DELETE", f"{topic}/subscription/{name}")

    play(story)


def test_a_reader_group_that_is_a_subscriber_is_a_subscription_and_one_that_is_not_is_none() -> None:
    async def story(w: World) -> None:
        stream = TOPIC.stream
        from uuid import UUID

        from penstock.model.cuts import StreamCut

        cut = StreamCut(stream, {SEGMENT: 0})
        for number, (name, kind) in enumerate(
            (("mine", ReaderGroupRetention.MANUAL), ("reader", ReaderGroupRetention.NONE))
        ):
            await w.controller.groups.create(
                ReaderGroupConfig(
                    scope=stream.scope, name=name, id=UUID(int=number + 1), retention=kind, start_cuts={stream: cut}
                )
            )
        await w.write(TOPIC, *events(3))
        assert await w.ok("GET", f"{P}/subscriptions") == ["mine"]
        assert await w.backlog("mine") == 3
        await w.refused(409, "PUT", f"{P}/subscription/reader", "latest")
        await w.refused(409, "PUT", f"{P}/subscription/mine", "latest")
        await w.ok("POST", f"{P}/subscription/mine/skip/2")
        assert await w.backlog("mine") == 1
        # Another topic's subscription of that name would make its readers read that topic too.
        await w.refused(409, "PUT", f"{P}2/subscription/mine", "latest")
        await w.ok("DELETE", f"{P}/subscription/mine")
        assert await w.ok("GET", f"{P}/subscriptions") == []
        assert "mine" in await w.controller.groups.list(stream.scope)
        await w.ok("DELETE", P)
        await w.ok("DELETE", f"{P}2")

    play(story, topic=True)


# --- truncate, trim, sizes ------------------------------------------------------------------------------------


def test_truncate_moves_every_sub_to_the_end_and_drops_all() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{P}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        await filled(w)
        assert (await w.ask("DELETE", f"{P}/truncate")).status == 204
        stats = await w.ok("GET", f"{P}/stats")
        assert stats["storageSize"] == 0
        assert stats["msgInCounter"] == 10
        assert await w.backlog("sub") == 0
        await w.write(TOPIC, b"next")
        assert await w.backlog("sub") == 1
        await w.refused(404, "DELETE", f"{P}x/truncate")

    play(story, topic=True)


def test_truncate_of_one_partition_leaves_the_others() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/partitions", 2)
        await w.ok("PUT", S, "earliest")
        for partition in (0, 1):
            await w.write(TOPIC, *events(4), partition=partition)
        await w.ok("DELETE", f"{P}-partition-0/truncate")
        assert await w.backlog("sub", f"{P}-partition-0") == 0
        assert await w.backlog("sub", f"{P}-partition-1") == 4
        assert (await w.ok("GET", f"{P}-partition-1/stats"))["storageSize"] > 0

    play(story)


def test_trim_runs_retention_and_of_a_non_persistent_topic_is_405() -> None:
    async def story(w: World) -> None:
        await filled(w)
        await w.ok("POST", f"{S}/skip/6")
        assert (await w.ask("POST", f"{P}/trim")).status == 204
        await w.refused(405, "POST", P.replace("/persistent/", "/non-persistent/") + "/trim")
        await w.refused(404, "POST", f"{P}x/trim")
        assert await w.backlog("sub") == 4

    play(story, topic=True)


def test_backlog_size_from_a_position_and_in_all() -> None:
    async def story(w: World) -> None:
        ends = await w.write(TOPIC, *events(10))
        assert await w.ok("PUT", f"{P}/backlogSize", at(-1, ledger=-1)) == ends[-1]
        assert await w.ok("PUT", f"{P}/backlogSize", at(4)) == ends[-1] - ends[3]
        assert await w.ok("PUT", f"{P}/backlogSize", at(10)) == 0
        await w.refused(412, "PUT", f"{P}/backlogSize", at(4, ledger=9))

    play(story, topic=True)


def test_backlog_tells_what_is_stored_and_what_each_sub_has_left() -> None:
    async def story(w: World) -> None:
        await filled(w)
        await w.ok("POST", f"{S}/skip/6")
        found = await w.ok("GET", f"{P}/backlog")
        assert found["totalMessages"] == 10
        assert found["messageBacklog"] == 4
        assert found["cursorDetails"]["sub"]["messageBacklog"] == 4

    play(story, topic=True)


def test_analyze_backlog_counts_exactly() -> None:
    async def story(w: World) -> None:
        await filled(w)
        await w.ok("POST", f"{S}/skip/6")
        found = await w.ok("POST", f"{S}/analyzeBacklog")
        assert (found["entries"], found["messages"], found["aborted"]) == (4, 4, False)

    play(story, topic=True)
