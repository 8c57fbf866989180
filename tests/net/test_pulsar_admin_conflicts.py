"""A backlog quota must be below the retention: each case of Pulsar's rule, at the boundary, with its asymmetries."""

from __future__ import annotations

import pytest
from pulsar_admin_world import N, P, World, play

MIB = 1 << 20
LEVELS = [N, P]


def retention(minutes: int, mib: int) -> dict[str, object]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mib}


def quota(size: int = -1, time: int = -1) -> dict[str, object]:
    return {"limitSize": size, "limitTime": time, "policy": "producer_request_hold"}


# --- retention against quota ----------------------------------------------------------------------------------

TOO_MUCH = "Backlog Quota exceeds configured retention quota for {}. Please increase retention quota and retry"
TOO_LITTLE = "Retention Quota must exceed configured backlog quota for {}. Please increase retention quota and retry"


@pytest.mark.parametrize(("level", "word"), [(N, "namespace"), (P, "topic")])
def test_412_size_quota_equal_to_retention_and_one_byte_less_is_fine(level: str, word: str) -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{level}/retention", retention(10, 10))
        assert await w.refused(412, "POST", f"{level}/backlogQuota", quota(10 * MIB)) == TOO_MUCH.format(word)
        assert await w.ok("GET", f"{level}/backlogQuotaMap") == {}
        await w.ok("POST", f"{level}/backlogQuota", quota(10 * MIB - 1))

    play(story, topic=True)


@pytest.mark.parametrize(("level", "word"), [(N, "namespace"), (P, "topic")])
def test_412_time_in_a_size_quota_equal_to_retention_and_one_second_less_is_fine(level: str, word: str) -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{level}/retention", retention(10, 10))
        assert await w.refused(412, "POST", f"{level}/backlogQuota", quota(1, 600)) == TOO_MUCH.format(word)
        await w.ok("POST", f"{level}/backlogQuota", quota(1, 599))

    play(story, topic=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kept", [(0, 0), (-1, -1)])
def test_412_never_where_both_retention_fields_are_0_or_less(level: str, kept: tuple[int, int]) -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{level}/retention", retention(*kept))
        await w.ok("POST", f"{level}/backlogQuota", quota(2**50, 2**30))
        await w.ok("POST", f"{level}/backlogQuota?backlogQuotaType=message_age", quota(2**50, 2**30))

    play(story, topic=True)


@pytest.mark.parametrize("level", LEVELS)
def test_412_never_on_a_dimension_without_limit(level: str) -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{level}/retention", retention(-1, 10))
        await w.ok("POST", f"{level}/backlogQuota", quota(1, 2**30))

    play(story, topic=True)


def test_412_asymmetry_an_age_quota_of_a_namespace_is_never_refused_and_one_of_a_topic_is() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/retention", retention(10, 10))
        await w.ok("POST", f"{N}/backlogQuota?backlogQuotaType=message_age", quota(time=600))
        path = f"{P}/backlogQuota?backlogQuotaType=message_age"
        assert await w.refused(412, "POST", path, quota(time=600)) == TOO_MUCH.format("topic")
        await w.ok("POST", path, quota(time=599))

    play(story, topic=True)


@pytest.mark.parametrize(("level", "word"), [(N, "namespace"), (P, "topic")])
def test_412_retention_at_or_below_the_stored_size_quota(level: str, word: str) -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{level}/backlogQuota", quota(10 * MIB))
        assert await w.refused(412, "POST", f"{level}/retention", retention(-1, 10)) == TOO_LITTLE.format(word)
        assert (await w.ask("GET", f"{level}/retention")).status == 204
        await w.ok("POST", f"{level}/retention", retention(-1, 11))

    play(story, topic=True)


def test_412_asymmetry_retention_of_a_namespace_is_not_compared_with_its_age_quota_and_that_of_a_topic_is() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/backlogQuota?backlogQuotaType=message_age", quota(time=600))
        await w.ok("POST", f"{N}/retention", retention(10, 10))
        assert await w.refused(412, "POST", f"{P}/retention", retention(10, 10)) == TOO_LITTLE.format("topic")
        await w.ok("POST", f"{P}/retention", retention(11, 10))

    play(story, topic=True)


def test_412_a_topic_quota_is_compared_with_its_own_retention_else_the_namespaces() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/retention", retention(-1, 10))
        await w.refused(412, "POST", f"{P}/backlogQuota", quota(10 * MIB))
        await w.ok("POST", f"{P}/retention", retention(-1, 20))
        await w.ok("POST", f"{P}/backlogQuota", quota(10 * MIB))

    play(story, topic=True)
