"""Calls on clusters, tenants and brokers, and the lookup of topics: what tools request first."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from penstock.net.http.pulsar.bodies import AdminError, parse_object
from penstock.net.http.pulsar.context import CLUSTER, DONE, Admin, Call, Reply, Routes, as_json, as_text
from penstock.net.http.pulsar.names import is_entity_name
from penstock.net.http.pulsar.records import Record, tenant_key

_T = "/admin/v2/tenants/{tenant}"
_C = "/admin/v2/clusters/{cluster}"
_LOOKUP = "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}"
BINARY_PORT = 6650

_SETTINGS = {
    "defaultRetentionTimeInMinutes": "0",
    "defaultRetentionSizeInMB": "0",
    "ttlDurationDefaultInSeconds": "0",
    "backlogQuotaDefaultLimitBytes": "-1",
    "backlogQuotaDefaultLimitSecond": "-1",
    "backlogQuotaDefaultRetentionPolicy": "producer_request_hold",
    "preciseTimeBasedBacklogQuotaCheck": "false",
    "subscriptionExpirationTimeMinutes": "0",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "brokerDeleteInactiveTopicsMode": "delete_when_no_subscriptions",
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "60",
    "allowAutoTopicCreation": "true",
    "allowAutoTopicCreationType": "non-partitioned",
    "forceDeleteNamespaceAllowed": "false",
    "forceDeleteTenantAllowed": "false",
    "topicLevelPoliciesEnabled": "true",
}


class Tenants:
    """Calls above namespaces. There is one cluster and one broker: this server."""

    def __init__(self, admin: Admin, binary_port: int = BINARY_PORT) -> None:
        self._admin = admin
        self._binary_port = binary_port

    def routes(self) -> Routes:
        brokers = "/admin/v2/brokers"
        return (
            ("GET", "/admin/v2/clusters", self.clusters),
            ("GET", _C, self.cluster),
            ("PUT", _C, self.create_cluster),
            ("GET", "/admin/v2/tenants", self.names),
            ("GET", _T, self.get),
            ("PUT", _T, self.create),
            ("POST", _T, self.update),
            ("DELETE", _T, self.delete),
            ("GET", brokers + "/health", self.health),
            ("GET", brokers + "/ready", self.health),
            ("GET", brokers + "/version", self.version),
            ("GET", brokers + "/leaderBroker", self.leader),
            ("GET", brokers + "/configuration/runtime", self.configuration),
            ("GET", brokers + "/{cluster}", self.brokers),
            ("GET", brokers, self.brokers),
            ("GET", _LOOKUP, self.lookup),
        )

    # --- clusters and brokers ------------------------------------------------------------------------------

    def _urls(self, call: Call) -> dict[str, str]:
        host = call.host.rpartition(":")[0] if call.host.rpartition(":")[2].isdigit() else call.host
        return {"http": f"http://{call.host}", "binary": f"pulsar://{host}:{self._binary_port}"}

    async def clusters(self, call: Call) -> Reply:
        return as_json([CLUSTER])

    async def cluster(self, call: Call) -> Reply:
        _check_cluster(call)
        urls = self._urls(call)
        return as_json(
            {
                "serviceUrl": urls["http"],
                "brokerServiceUrl": urls["binary"],
                "brokerClientTlsEnabled": False,
                "tlsAllowInsecureConnection": False,
            }
        )

    async def create_cluster(self, call: Call) -> Reply:
        if call.params["cluster"] == CLUSTER:
            raise AdminError(409, "Cluster already exists")
        raise AdminError(405, "There is one cluster, this server; others cannot be added")

    async def health(self, call: Call) -> Reply:
        """Healthy if the store answers."""
        await self._admin.controller.scopes.exists("health")
        return as_text("ok")

    async def version(self, call: Call) -> Reply:
        return as_text(f"penstock-{version('penstock')}")

    async def leader(self, call: Call) -> Reply:
        return as_json({"brokerId": call.host, "serviceUrl": self._urls(call)["http"]})

    async def configuration(self, call: Call) -> Reply:
        """The broker settings that this server follows: they apply where no policy sets another value."""
        return as_json({"clusterName": CLUSTER, **_SETTINGS})

    async def brokers(self, call: Call) -> Reply:
        if "cluster" in call.params:
            _check_cluster(call)
        return as_json([call.host])

    async def lookup(self, call: Call) -> Reply:
        await self._admin.check_namespace(call.namespace)
        urls = self._urls(call)
        return as_json(
            {
                "brokerUrl": urls["binary"],
                "brokerUrlTls": None,
                "httpUrl": urls["http"],
                "httpUrlTls": None,
                "nativeUrl": urls["binary"],
            }
        )

    # --- tenants -------------------------------------------------------------------------------------------

    async def names(self, call: Call) -> Reply:
        return as_json([name for name, _ in await self._admin.records.under(b"tenant/")])

    async def get(self, call: Call) -> Reply:
        record = await self._admin.check_tenant(call.params["tenant"])
        return as_json({name: record.get(name, []) for name in ("adminRoles", "allowedClusters")})

    async def create(self, call: Call) -> Reply:
        name = call.params["tenant"]
        if not is_entity_name(name):
            raise AdminError(412, "Tenant name is not valid")
        record = _read_tenant(call.body)
        if not await self._admin.records.create(tenant_key(name), record):
            raise AdminError(409, "Tenant already exist")
        return DONE

    async def update(self, call: Call) -> Reply:
        record = _read_tenant(call.body)
        await self._admin.check_tenant(call.params["tenant"])
        await self._admin.records.change(tenant_key(call.params["tenant"]), lambda _: record)
        return DONE

    async def delete(self, call: Call) -> Reply:
        name = call.params["tenant"]
        await self._admin.check_tenant(name)
        if call.flag("force"):
            raise AdminError(405, "Broker doesn't allow forced deletion of tenants")
        if await self._admin.namespaces(name):
            raise AdminError(409, "The tenant still has active namespaces")
        await self._admin.records.remove(tenant_key(name))
        return DONE


def _check_cluster(call: Call) -> None:
    if call.params["cluster"] != CLUSTER:
        raise AdminError(404, "Cluster does not exist")


def _read_tenant(body: bytes) -> Record:
    value = parse_object(body)
    if value is None:
        raise AdminError(412, "TenantInfo is null")
    roles, clusters = value.get("adminRoles") or [], value.get("allowedClusters")
    if not _texts(roles):
        raise AdminError(400, "adminRoles is not a list of names")
    if not clusters:
        raise AdminError(412, "Clusters can not be empty")
    if not _texts(clusters):
        raise AdminError(400, "allowedClusters is not a list of names")
    if any(cluster != CLUSTER for cluster in clusters):
        raise AdminError(412, "Clusters do not exist")
    return {"adminRoles": sorted(set(roles)), "allowedClusters": sorted(set(clusters))}


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
