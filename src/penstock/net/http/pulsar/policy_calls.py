"""Calls on policies, of namespaces and of topics: paths, bodies and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from penstock.net.http.pulsar.bodies import (
    AdminError,
    Inactive,
    NoBody,
    Quota,
    Retention,
    parse_object,
    quota_type,
    read_inactive,
    read_quota,
    read_retention,
    whole,
    whole_body,
    whole_query,
)
from penstock.net.http.pulsar.context import DONE, Admin, Call, Handler, Reply, Routes, as_json
from penstock.net.http.pulsar.policies import Level, Policies, Stored, namespace_level, topic_level
from penstock.net.http.pulsar.topics import P

N = "/admin/v2/namespaces/{tenant}/{namespace}"

Show = Callable[[Stored], Any]
Finder = Callable[[Call], Awaitable[Level]]

_SHOWN: Mapping[str, Show] = {
    "retention": lambda stored: stored.retention,
    "messageTTL": lambda stored: stored.ttl_s,
    "subscriptionExpirationTime": lambda stored: stored.expiration_min,
    "inactiveTopicPolicies": lambda stored: stored.inactive,
    "persistence": lambda stored: stored.persistence,
    "backlogQuotaMap": lambda stored: {kind: quota.to_json() for kind, quota in stored.quotas.items()},
}
"""The answer of each policy that can be read."""


class PolicyCalls:
    """The same calls below a namespace and below a topic."""

    def __init__(self, admin: Admin, policies: Policies) -> None:
        self._admin = admin
        self._policies = policies

    def routes(self) -> Routes:
        return (*self._below(N, self._namespace, on_topic=False), *self._below(P, self._topic, on_topic=True))

    async def _namespace(self, call: Call) -> Level:
        return namespace_level(call.namespace)

    async def _topic(self, call: Call) -> Level:
        return topic_level(await self._admin.topic_to_change(call), is_global=call.flag("isGlobal"))

    def _below(self, prefix: str, level: Finder, *, on_topic: bool) -> Routes:
        """Reading, setting and removing each policy."""
        policies = self._policies
        seconds, minutes = _numbers(on_topic=on_topic)

        def of(set_it: Callable[[Level, Call], Awaitable[None]]) -> Handler:
            async def handle(call: Call) -> Reply:
                await set_it(await level(call), call)
                return DONE

            return handle

        async def set_retention(at: Level, call: Call) -> None:
            body = parse_object(call.body)
            if body is not None:
                await policies.set_retention(at, read_retention(body))
            elif not on_topic:
                await policies.set_retention(at, None)

        async def set_quota(at: Level, call: Call) -> None:
            body = parse_object(call.body)
            quota = None if body is None else read_quota(body)
            await policies.set_quota(at, quota_type(call.query.get("backlogQuotaType")), quota)

        async def set_persistence(at: Level, call: Call) -> None:
            await policies.set_persistence(at, _read_persistence(parse_object(call.body)))

        async def set_inactive(at: Level, call: Call) -> None:
            await policies.set_inactive(at, _inactive(call))

        async def remove_quota(at: Level, call: Call) -> None:
            await policies.set_quota(at, quota_type(call.query.get("backlogQuotaType")), None)

        setters: dict[
            str, tuple[Callable[[Level, Call], Awaitable[None]], Callable[[Level, Call], Awaitable[None]]]
        ] = {
            "retention": (set_retention, lambda at, _: policies.set_retention(at, None)),
            "messageTTL": (
                lambda at, call: policies.set_ttl(at, seconds(call)),
                lambda at, _: policies.set_ttl(at, None),
            ),
            "subscriptionExpirationTime": (
                lambda at, call: policies.set_expiration(at, minutes(call)),
                lambda at, _: policies.set_expiration(at, None),
            ),
            "inactiveTopicPolicies": (set_inactive, lambda at, _: policies.set_inactive(at, None)),
            "persistence": (set_persistence, lambda at, _: policies.set_persistence(at, None)),
            "backlogQuota": (set_quota, remove_quota),
        }
        found: list[tuple[str, str, Handler]] = []
        for name, show in _SHOWN.items():
            found.append(("GET", f"{prefix}/{name}", self._reader(level, name, show)))
        for name, (set_it, remove) in setters.items():
            found.append(("POST", f"{prefix}/{name}", of(set_it)))
            found.append(("DELETE", f"{prefix}/{name}", of(remove)))
        return found

    def _reader(self, level: Finder, name: str, show: Show) -> Handler:
        async def handle(call: Call) -> Reply:
            at = await level(call)
            if at.topic is not None and call.flag("applied"):
                return as_json((await self._policies.applied(at))[name])
            value = show(await self._policies.get(at))
            if isinstance(value, (Retention, Quota, Inactive)):
                value = value.to_json()
            return DONE if value is None else as_json(value)

        return handle


def _numbers(*, on_topic: bool) -> tuple[Callable[[Call], int | None], Callable[[Call], int | None]]:
    """How TTL and subscription expiry are passed: in the body for a namespace, in the query for a topic."""
    if not on_topic:
        return (lambda call: whole_body(call.body, "messageTTL")), (
            lambda call: whole_body(call.body, "subscriptionExpirationTime")
        )

    def of(name: str) -> Callable[[Call], int | None]:
        def read(call: Call) -> int | None:
            text = call.query.get(name, "")
            return whole(whole_query(text), name) if text else None

        return read

    return of("messageTTL"), of("subscriptionExpirationTime")


def _inactive(call: Call) -> Inactive | None:
    body = parse_object(call.body)
    return None if body is None else read_inactive(body)


def _read_persistence(body: dict[str, Any] | None) -> dict[str, Any]:
    if body is None:
        raise NoBody
    found: dict[str, Any] = {
        name: whole(body.get(name), name)
        for name in ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
    }
    rate = body.get("managedLedgerMaxMarkDeleteRate", 0)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)):
        raise AdminError(400, "managedLedgerMaxMarkDeleteRate is not a number")
    found["managedLedgerMaxMarkDeleteRate"] = float(rate)
    if not found["bookkeeperEnsemble"] >= found["bookkeeperWriteQuorum"] >= found["bookkeeperAckQuorum"] >= 0:
        raise AdminError(412, "Bookkeeper-Ensemble must be >= WriteQuorum >= AckQuorum")
    return found
