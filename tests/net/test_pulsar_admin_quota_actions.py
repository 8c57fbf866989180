"""Each of Pulsar's two quotas acts by its own retention policy: what the admin API shows is what happens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_admin_world import TOPIC, N, P, World, play

from penstock.model.errors import QuotaExceededError, QuotaHeldError

HOLD, REJECT, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
SIZE, AGE = "destination_storage", "message_age"
EVENT = b"x" * 92  # 100 bytes as stored
LIMITS = {SIZE: {"limitSize": 1000, "limitTime": -1}, AGE: {"limitSize": -1, "limitTime": 3600}}


async def set_quota(w: World, level: str, kind: str, policy: str | None) -> None:
    path = f"{level}/backlogQuota?backlogQuotaType={kind}"
    if policy is None:
        await w.ok("DELETE", path)
    else:
        await w.ok("POST", path, {**LIMITS[kind], "policy": policy})


async def reported(w: World, kind: str) -> str | None:
    """The action that the API shows for the quota: the topic's own, else the namespace's."""
    for level in (P, N):
        quotas = await w.ok("GET", f"{level}/backlogQuotaMap")
        if kind in quotas:
            return str(quotas[kind]["policy"])
    return None


async def write_at_quota(w: World) -> str | None:
    """What a producer meets that writes one event at the quota; None: nothing."""
    try:
        await w.write(TOPIC, EVENT)
    except QuotaHeldError:
        return HOLD
    except QuotaExceededError:
        return REJECT
    return None


async def at_size(w: World) -> str | None:
    """What happens once 1000 bytes are unread."""
    await w.write(TOPIC, *[EVENT] * 10)
    await w.cycle(TOPIC.stream)
    met = await write_at_quota(w)
    await w.cycle(TOPIC.stream)
    return met or (EVICT if await w.backlog("sub") < 11 else None)


async def at_age(w: World) -> str | None:
    """What happens once an unread event is two hours old."""
    await w.write(TOPIC, EVENT)
    w.clock.ms += 1000  # A place is recorded once for each time.
    await w.cycle(TOPIC.stream)
    w.clock.ms += 7_200_000
    await w.cycle(TOPIC.stream)
    left = await w.backlog("sub")
    return await write_at_quota(w) or (EVICT if left == 0 else None)


async def clear(w: World) -> None:
    await w.ok("POST", f"{P}/subscription/sub/skip_all")
    await w.cycle(TOPIC.stream)


def test_a_size_quota_evicts_where_an_age_quota_holds() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/subscription/sub", "earliest")
        await set_quota(w, P, SIZE, EVICT)
        await set_quota(w, P, AGE, HOLD)
        assert (await reported(w, SIZE), await reported(w, AGE)) == (EVICT, HOLD)
        assert await at_size(w) == EVICT
        await clear(w)
        assert await at_age(w) == HOLD

    play(story, topic=True)


ACTIONS = st.sampled_from([HOLD, REJECT, EVICT])
CHANGES = st.lists(
    st.tuples(st.sampled_from([N, P]), st.sampled_from([SIZE, AGE]), st.none() | ACTIONS), min_size=1, max_size=6
)


@settings(max_examples=20, deadline=None)
@given(changes=CHANGES)
def test_what_is_shown_after_any_changes_is_what_happens(changes: list[tuple[str, str, str | None]]) -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/subscription/sub", "earliest")
        wanted: dict[tuple[str, str], str | None] = {}
        for level, kind, policy in changes:
            await set_quota(w, level, kind, policy)
            wanted[level, kind] = policy
        for kind, happens in ((SIZE, at_size), (AGE, at_age)):
            said = await reported(w, kind)
            assert said == (wanted.get((P, kind)) or wanted.get((N, kind)))
            assert await happens(w) == said, kind
            await clear(w)

    play(story, topic=True)
