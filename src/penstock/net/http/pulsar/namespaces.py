"""Calls on namespaces: create, list, describe, delete, and clearing all backlogs in one."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from penstock.model.errors import AlreadyExistsError, NotEmptyError, ScopeNotFoundError
from penstock.net.http.pulsar.bodies import (
    AdminError,
    parse_object,
    read_inactive,
    read_quotas,
    read_retention,
    whole,
)
from penstock.net.http.pulsar.context import CLUSTER, DONE, Admin, Call, Reply, Routes, Topic, as_json
from penstock.net.http.pulsar.cursors import Cursors
from penstock.net.http.pulsar.names import NamespaceName, is_entity_name
from penstock.net.http.pulsar.policies import Level, Policies, namespace_level
from penstock.net.http.pulsar.policy_calls import N
from penstock.net.http.pulsar.records import Record, namespace_key, topics_key
from penstock.net.http.pulsar.subscriptions import Subscriptions
from penstock.net.http.pulsar.topics import Topics

BUNDLES = 4  # bundles of a new namespace, as in Pulsar
_BUNDLES_MAX = 1 << 16  # bundles; the bound that Pulsar's refusal names
_HASHES = 1 << 32  # values of Pulsar's 32-bit hash
_BOUND = re.compile(r"0x[0-9a-f]{8}\Z")


class Namespaces:
    """Calls on namespaces."""

    def __init__(self, admin: Admin, policies: Policies, topics: Topics, subscriptions: Subscriptions) -> None:
        self._admin = admin
        self._policies = policies
        self._topics = topics
        self._subscriptions = subscriptions

    def routes(self) -> Routes:
        found = [
            ("GET", "/admin/v2/namespaces/{tenant}", self.names),
            ("GET", N, self.describe),
            ("PUT", N, self.create),
            ("DELETE", N, self.delete),
            ("GET", N + "/topics", self.topics),
            ("GET", N + "/bundles", self.bundles),
            ("GET", N + "/permissions", self.permissions),
            ("GET", N + "/replication", self.replication),
            ("PUT", N + "/unload", self.unload),
        ]
        for verb in ("clearBacklog", "clearBacklog/{subscription}", "unsubscribe/{subscription}"):
            handler = self.unsubscribe if verb.startswith("unsubscribe") else self.clear
            found.append(("POST", f"{N}/{verb}", handler))
            found.append(("POST", f"{N}/{{bundle}}/{verb}", handler))
        return found

    async def names(self, call: Call) -> Reply:
        await self._admin.check_tenant(call.params["tenant"])
        return as_json([str(name) for name in await self._admin.namespaces(call.params["tenant"])])

    async def create(self, call: Call) -> Reply:
        name = call.namespace
        if not is_entity_name(name.tenant) or not is_entity_name(name.namespace):
            raise AdminError(412, "Namespace name is not valid")
        body = parse_object(call.body) or {}
        bundles = _read_bundles(body.get("bundles"))
        given = _read_policies(body)
        await self._admin.check_tenant(name.tenant)
        async with self._admin.lock(f"namespace/{name}"):
            try:
                await self._admin.make_namespace(name)
            except AlreadyExistsError as error:
                raise AdminError(409, "Namespace already exists") from error
            await self._admin.records.change(namespace_key(name), lambda record: {**record, "bundles": bundles})
            await self._apply(namespace_level(name), given)
        return DONE

    async def _apply(self, level: Level, given: dict[str, Any]) -> None:
        if given["retention"] is not None:
            await self._policies.set_retention(level, given["retention"])
        for kind, quota in given["quotas"].items():
            await self._policies.set_quota(level, kind, quota)
        if given["ttl"] is not None:
            await self._policies.set_ttl(level, given["ttl"])
        if given["expiration"] is not None:
            await self._policies.set_expiration(level, given["expiration"])
        if given["inactive"] is not None:
            await self._policies.set_inactive(level, given["inactive"])

    async def describe(self, call: Call) -> Reply:
        stored = await self._policies.get(namespace_level(call.namespace))
        shown: dict[str, Any] = {
            "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
            "replication_clusters": [CLUSTER],
            "bundles": await self._bundles(call.namespace),
            "backlog_quota_map": {kind: quota.to_json() for kind, quota in stored.quotas.items()},
            "clusterDispatchRate": {},
            "topicDispatchRate": {},
            "subscriptionDispatchRate": {},
            "replicatorDispatchRate": {},
            "clusterSubscribeRate": {},
            "publishMaxMessageRate": {},
            "latency_stats_sample_rate": {},
            "subscription_auth_mode": "None",
            "deleted": False,
            "encryption_required": False,
        }
        optional = {
            "message_ttl_in_seconds": stored.ttl_s,
            "retention_policies": None if stored.retention is None else stored.retention.to_json(),
            "subscription_expiration_time_minutes": stored.expiration_min,
            "inactive_topic_policies": None if stored.inactive is None else stored.inactive.to_json(),
            "persistence": stored.persistence,
        }
        return as_json(shown | {name: value for name, value in optional.items() if value is not None})

    async def delete(self, call: Call) -> Reply:
        name = call.namespace
        await self._admin.check_namespace(name)
        if call.flag("force"):
            raise AdminError(405, "Broker doesn't allow forced deletion of namespaces")
        for hold in [item for item in await self._admin.controller.holds.list(name.scope) if not item.is_undo]:
            raise AdminError(412, f"Namespace is held by {hold.owner}: {hold.reason}")
        if not await self._admin.topics(name):
            # Streams deleted by retention or other clients leave their subscribers' groups behind.
            await Cursors(self._admin).tidy(name.scope)
        try:
            await self._admin.controller.scopes.delete(name.scope)
        except NotEmptyError as error:
            raise AdminError(409, "Cannot delete non empty namespace") from error
        except ScopeNotFoundError as error:
            raise AdminError(404, "Namespace does not exist") from error
        for local, _ in await self._admin.records.under(topics_key(name)):
            await self._admin.records.remove(topics_key(name) + local.encode())
        await self._admin.records.remove(namespace_key(name))
        return DONE

    async def topics(self, call: Call) -> Reply:
        await self._admin.check_namespace(call.namespace)
        if call.query.get("mode", "PERSISTENT").upper() == "NON_PERSISTENT":
            return as_json([])
        return as_json(await self._topics.names(call.namespace))

    async def bundles(self, call: Call) -> Reply:
        await self._admin.check_namespace(call.namespace)
        return as_json(await self._bundles(call.namespace))

    async def _bundles(self, name: NamespaceName) -> Record:
        record = await self._admin.records.get(namespace_key(name)) or {}
        bundles: Record = record.get("bundles") or even_bundles(BUNDLES)
        return bundles

    async def permissions(self, call: Call) -> Reply:
        await self._admin.check_namespace(call.namespace)
        return as_json({})

    async def replication(self, call: Call) -> Reply:
        await self._admin.check_namespace(call.namespace)
        return as_json([CLUSTER])

    async def unload(self, call: Call) -> Reply:
        """Does nothing: there is one server, and it keeps serving."""
        await self._admin.check_namespace(call.namespace)
        return DONE

    async def clear(self, call: Call) -> Reply:
        found = await self._chosen(call)
        await self._subscriptions.clear_namespace(found, call.params.get("subscription"))
        return DONE

    async def unsubscribe(self, call: Call) -> Reply:
        found = await self._chosen(call)
        whole_topics = {topic.name: topic for topic in found if topic.partition in (None, 0)}
        await self._subscriptions.unsubscribe_namespace(list(whole_topics.values()), call.params["subscription"])
        return DONE

    async def _chosen(self, call: Call) -> list[Topic]:
        """The topics of the namespace, or of one bundle of it. Empty if the namespace does not exist."""
        name = call.namespace
        if not await self._admin.namespace_exists(name):
            return []
        bundle = call.params.get("bundle")
        if bundle is None:
            return await self._topics.in_bundle(name, None)
        low, _, high = bundle.partition("_")
        if not _BOUND.match(low) or not _BOUND.match(high):
            raise AdminError(412, f"Bundle range is invalid: {bundle}")
        boundaries = (await self._bundles(name))["boundaries"]
        if (low, high) not in set(pairwise(boundaries)):
            raise AdminError(412, f"Bundle {bundle} is not one of the namespace")
        # The last bundle includes its upper bound.
        end = int(high, 16) + (1 if high == boundaries[-1] else 0)
        return await self._topics.in_bundle(name, (int(low, 16), end))


def even_bundles(count: int) -> Record:
    """Boundaries of the topics' hashes, as the broker makes them."""
    step = _HASHES // count
    bounds = [f"0x{index * step:08x}" for index in range(count)] + ["0xffffffff"]
    return {"boundaries": bounds, "numBundles": count}


def _read_bundles(value: Any) -> Record:
    if value is None:
        return even_bundles(BUNDLES)
    if not isinstance(value, dict):
        raise AdminError(400, "bundles is not an object")
    bounds = value.get("boundaries")
    if bounds:
        good = (
            isinstance(bounds, list)
            and len(bounds) >= 2
            and all(isinstance(b, str) and _BOUND.match(b) for b in bounds)
        )
        if not good or bounds != sorted(set(bounds)) or (bounds[0], bounds[-1]) != ("0x00000000", "0xffffffff"):
            raise AdminError(412, "Invalid bundle boundaries")
        return {"boundaries": bounds, "numBundles": len(bounds) - 1}
    count = whole(value.get("numBundles"), "numBundles") or BUNDLES
    if not 0 < count <= _BUNDLES_MAX:
        raise AdminError(
            412, f"Invalid number of bundles. Number of bundles has to be in the range of (0, {_BUNDLES_MAX}]."
        )
    return even_bundles(count)


def _read_policies(body: dict[str, Any]) -> dict[str, Any]:
    retention, inactive = body.get("retention_policies"), body.get("inactive_topic_policies")
    quotas = body.get("backlog_quota_map")
    ttl, expiration = body.get("message_ttl_in_seconds"), body.get("subscription_expiration_time_minutes")
    for name, value in (("retention_policies", retention), ("inactive_topic_policies", inactive)):
        if value is not None and not isinstance(value, dict):
            raise AdminError(400, f"{name} is not an object")
    found = {
        "retention": None if retention is None else read_retention(retention),
        "quotas": {} if quotas is None else read_quotas(quotas),
        "ttl": None if ttl is None else whole(ttl, "message_ttl_in_seconds"),
        "expiration": None if expiration is None else whole(expiration, "subscription_expiration_time_minutes"),
        "inactive": None if inactive is None else read_inactive(inactive),
    }
    clusters = body.get("replication_clusters")
    if clusters and clusters != [CLUSTER]:
        raise AdminError(412, f"Invalid cluster id, the only cluster is {CLUSTER}")
    return found
