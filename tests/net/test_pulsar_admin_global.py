"""Global topic policies: a level between the topic's own policies and its namespace's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_admin_world import NS, TOPIC, N, P, World, play
from starlette.routing import Router

from penstock.model.retention import Backlog, OnExceed, PolicyDocument, Retain
from penstock.net.http.pulsar.api import pulsar_routes
from penstock.net.http.pulsar.records import TABLE
from tests.flat_control import SUBJECTS, Around

MIB = 1 << 20
LOCAL, GLOBAL, NAMESPACE = "local", "global", "namespace"
LEVELS = (LOCAL, GLOBAL, NAMESPACE)
HOLD, REJECT, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"


def retention(minutes: int, mib: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mib}


def quota(size: int, time: int, policy: str) -> dict[str, Any]:
    return {"limit": size, "limitSize": size, "limitTime": time, "policy": policy}


def inactive(seconds: int) -> dict[str, Any]:
    return {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": seconds,
        "deleteWhileInactive": True,
    }


def persistence(copies: int) -> dict[str, Any]:
    body: dict[str, Any] = dict.fromkeys(("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum"), copies)
    return {**body, "managedLedgerMaxMarkDeleteRate": 1.0}


VALUES: Mapping[str, tuple[Any, Any, Any]] = {
    "retention": (retention(-1, 5000), retention(6000, -1), retention(-1, -1)),
    "messageTTL": (30, 60, 0),
    "subscriptionExpirationTime": (3, 5, 0),
    "inactiveTopicPolicies": (inactive(90), inactive(91), inactive(92)),
    "persistence": (persistence(1), persistence(2), persistence(3)),
    "destination_storage": (quota(1000, -1, HOLD), quota(2000, -1, EVICT), quota(-1, -1, REJECT)),
    "message_age": (quota(-1, 10, EVICT), quota(-1, 20, REJECT), quota(-1, 0, HOLD)),
}
QUOTAS = ("destination_storage", "message_age")


def path_of(level: str, name: str, **query: Any) -> str:
    asked = {**query, "isGlobal": "true"} if level == GLOBAL else query
    if name in QUOTAS:
        asked["backlogQuotaType"] = name
    text = "&".join(f"{key}={value}" for key, value in asked.items())
    return f"{N if level == NAMESPACE else P}/{'backlogQuota' if name in QUOTAS else name}?{text}"


async def put(w: World, level: str, name: str, value: Any) -> None:
    """Set the policy at the level; None: remove it."""
    if value is None:
        await w.ok("DELETE", path_of(level, name))
    elif isinstance(value, int) and level != NAMESPACE:
        await w.ok("POST", path_of(level, name, **{name: value}))
    else:
        await w.ok("POST", path_of(level, name), value)


async def shown(w: World, level: str, name: str, **query: Any) -> Any:
    if name not in QUOTAS:
        return await w.ok("GET", path_of(level, name, **query))
    path = path_of(level, name, **query).replace("/backlogQuota?", "/backlogQuotaMap?")
    return (await w.ok("GET", path)).get(name)


async def in_force(w: World) -> dict[str, Any]:
    """What applies to the topic, in the bodies' numbers; of a quota the limit and the action."""
    policy = await w.controller.policies.effective(TOPIC.stream)
    names = {OnExceed.HOLD: HOLD, OnExceed.REJECT: REJECT, OnExceed.EVICT: EVICT}
    return {
        "retention": (policy.min_age_ms, policy.min_bytes),
        "messageTTL": policy.ttl_ms,
        "subscriptionExpirationTime": policy.subscriber_idle_ms,
        "inactiveTopicPolicies": policy.stream_idle_ms,
        "destination_storage": (policy.backlog_bytes, names[policy.bytes_action]),
        "message_age": (policy.backlog_age_ms, names[policy.age_action]),
    }


def wanted(name: str, value: Any) -> Any:
    """The same of the body that is to apply; None: of no body."""
    match name:
        case "retention":
            minutes, mib = (0, 0) if value is None else value.values()
            return None if minutes < 0 else minutes * 60_000, None if mib < 0 else mib * MIB
        case "messageTTL":
            return (value or 0) * 1000 or None
        case "subscriptionExpirationTime":
            return (value or 0) * 60_000 or None
        case "inactiveTopicPolicies":
            return None if value is None else value["maxInactiveDurationSeconds"] * 1000
        case "destination_storage":
            size = -1 if value is None else value["limitSize"]
            return None if size < 0 else size, HOLD if value is None else value["policy"]
    time = 0 if value is None else value["limitTime"]
    return time * 1000 if time > 0 else None, HOLD if value is None else value["policy"]


STEPS = st.lists(
    st.tuples(st.sampled_from(LEVELS), st.sampled_from(list(VALUES)), st.none() | st.sampled_from([0, 1, 2])),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_each_level_is_by_itself_and_the_first_that_is_set_applies(steps: list[tuple[str, str, int | None]]) -> None:
    async def story(w: World) -> None:
        model: dict[tuple[str, str], Any] = {}
        for level, name, number in steps:
            value = None if number is None else VALUES[name][number]
            await put(w, level, name, value)
            model[level, name] = value
        applied = await in_force(w)
        for name in VALUES:
            said = [model.get((level, name)) for level in LEVELS]
            assert [await shown(w, level, name) for level in LEVELS] == said, name
            first = next((value for value in said if value is not None), None)
            if name in applied:
                assert applied[name] == wanted(name, first), name
            if name not in QUOTAS and first is not None:
                assert await shown(w, LOCAL, name, applied="true") == first
                if said[0] is None:
                    assert await shown(w, GLOBAL, name, applied="true") == first

    play(story, topic=True)


def test_a_global_policy_of_a_missing_topic_is_404_and_of_a_partition_412() -> None:
    async def story(w: World) -> None:
        await w.refused(404, "POST", f"{P}/retention?isGlobal=true", retention(1, 1))
        await w.ok("PUT", f"{P}/partitions", 2)
        await w.refused(412, "POST", f"{P}-partition-0/retention?isGlobal=true", retention(1, 1))
        await w.ok("POST", f"{P}/retention?isGlobal=true", retention(1, 1))

    play(story)


def test_a_global_quota_at_the_retention_that_applies_is_412_and_changes_nothing() -> None:
    async def story(w: World) -> None:
        await put(w, GLOBAL, "retention", retention(-1, 1))
        await w.refused(412, "POST", path_of(GLOBAL, "destination_storage"), quota(MIB, -1, HOLD))
        await w.refused(412, "POST", path_of(LOCAL, "destination_storage"), quota(MIB, -1, HOLD))
        assert await shown(w, GLOBAL, "destination_storage") is None
        await put(w, GLOBAL, "retention", retention(-1, 3))
        await put(w, GLOBAL, "destination_storage", quota(2 * MIB, -1, HOLD))
        await w.refused(412, "POST", path_of(LOCAL, "retention"), retention(-1, 1))

    play(story, topic=True)


def test_a_global_policy_that_contradicts_a_maximum_is_refused_and_the_old_one_stays() -> None:
    async def story(w: World) -> None:
        await w.controller.policies.set(TOPIC.stream, PolicyDocument(retain=Retain(max_bytes=2 * MIB)))
        await put(w, GLOBAL, "retention", retention(-1, 1))
        await w.refused(400, "POST", f"{P}/retention?isGlobal=true", retention(-1, 3))
        assert await shown(w, GLOBAL, "retention") == retention(-1, 1)
        assert await shown(w, LOCAL, "retention") is None
        assert (await w.controller.policies.effective(TOPIC.stream)).min_bytes == MIB

    play(story, topic=True)


def test_a_document_that_was_replaced_elsewhere_is_the_topics_own() -> None:
    async def story(w: World) -> None:
        await put(w, GLOBAL, "messageTTL", 30)
        await put(w, GLOBAL, "destination_storage", quota(1000, -1, EVICT))
        await w.controller.policies.set(TOPIC.stream, PolicyDocument(backlog=Backlog(max_bytes=7)))
        assert await shown(w, LOCAL, "destination_storage") == quota(7, -1, HOLD)
        assert await shown(w, GLOBAL, "destination_storage") == quota(1000, -1, EVICT)
        # The document says nothing of a time to live: nobody has one.
        assert await shown(w, GLOBAL, "messageTTL") is None
        await put(w, LOCAL, "destination_storage", None)
        policy = await w.controller.policies.effective(TOPIC.stream)
        assert (policy.backlog_bytes, policy.bytes_action, policy.ttl_ms) == (1000, OnExceed.EVICT, None)

    play(story, topic=True)


class Crash(Exception):
    """The server is gone in the middle of a change."""


class _Crashing:
    """A part of which a call that changes something does not come back, once so many have been made."""

    def __init__(self, part: Any, left: list[int], changes: str) -> None:
        self._part, self._left, self._changes = part, left, changes

    def __getattr__(self, name: str) -> Any:
        if name in SUBJECTS:
            return getattr(Around(self._part, self._crashing), name)
        return self._crashing(name, getattr(self._part, name))

    def _crashing(self, name: str, found: Any) -> Any:
        if name != self._changes:
            return found

        async def call(*args: Any) -> Any:
            if name == "policies.set" or args[0] == TABLE:
                if self._left[0] == 0:
                    raise Crash
                self._left[0] -= 1
            return await found(*args)

        return call


@pytest.mark.parametrize("changes", range(3))
@pytest.mark.parametrize("old", [None, 30])
@pytest.mark.parametrize("new", [None, 60])
def test_a_crash_leaves_the_old_or_the_new_global_policy_and_none_of_the_topics_own(
    changes: int, old: int | None, new: int | None
) -> None:
    async def story(w: World) -> None:
        await put(w, NAMESPACE, "messageTTL", 90)
        await put(w, GLOBAL, "messageTTL", old)
        whole, left = w.app, [changes]
        controller: Any = _Crashing(w.controller, left, "policies.set")
        store: Any = _Crashing(w.store, left, "table_update")
        w.app = Router(pulsar_routes(controller, store, w.clock))
        try:
            await put(w, GLOBAL, "messageTTL", new)
        except (Crash, AssertionError):
            assert left == [0]
        w.app = whole

        async def check(allowed: set[int | None]) -> None:
            found = await shown(w, GLOBAL, "messageTTL")
            assert found in allowed
            assert await shown(w, LOCAL, "messageTTL") is None
            ttl_ms = (await w.controller.policies.effective(TOPIC.stream)).ttl_ms
            assert ttl_ms == (90 if found is None else found) * 1000

        await check({old, new})
        # The next change of any other policy completes it or drops it.
        await put(w, LOCAL, "retention", retention(-1, -1))
        await check({old, new})
        await put(w, GLOBAL, "messageTTL", None)
        await check({None})
        assert (await w.controller.policies.get(NS.scope)).backlog.ttl_s == 90

    play(story, topic=True)
