"""Clusters, tenants, namespaces, topics and their statistics by Pulsar's admin API, as a real admin client asks for them."""

from __future__ import annotations

import pytest
from pulsar_admin_world import NS, TENANT, N, P, World, play

from penstock.model.names import StreamName
from penstock.model.policies import ScalingPolicy, StreamConfig

T = "/admin/v2/tenants"
LIST = "/admin/v2/persistent/my-tenant/my-ns"


# --- clusters, brokers, lookup --------------------------------------------------------------------------------


def test_clusters_there_is_one() -> None:
    async def story(w: World) -> None:
        assert await w.ok("GET", "/admin/v2/clusters") == ["standalone"]
        found = await w.ok("GET", "/admin/v2/clusters/standalone")
        assert found["serviceUrl"] == "http://broker.example:8080"
        assert found["brokerServiceUrl"] == "pulsar://broker.example:6650"
        assert await w.refused(404, "GET", "/admin/v2/clusters/x") == "Cluster does not exist"
        await w.refused(409, "PUT", "/admin/v2/clusters/standalone", {})
        await w.refused(405, "PUT", "/admin/v2/clusters/x", {})

    play(story, namespace=False)


def test_brokers_health_version_and_list() -> None:
    async def story(w: World) -> None:
        answer = await w.ask("GET", "/admin/v2/brokers/health")
        assert (answer.status, answer.body) == (200, b"ok")
        assert answer.headers["content-type"].startswith("text/plain")
        assert (await w.ask("GET", "/admin/v2/brokers/version")).body.startswith(b"penstock-")
        assert await w.ok("GET", "/admin/v2/brokers/standalone") == ["broker.example:8080"]
        assert await w.ok("GET", "/admin/v2/brokers") == ["broker.example:8080"]
        assert (await w.ok("GET", "/admin/v2/brokers/leaderBroker"))["serviceUrl"] == "http://broker.example:8080"
        await w.refused(404, "GET", "/admin/v2/brokers/other")
        runtime = await w.ok("GET", "/admin/v2/brokers/configuration/runtime")
        assert (runtime["clusterName"], runtime["defaultRetentionTimeInMinutes"]) == ("standalone", "0")

    play(story, namespace=False)


def test_lookup_of_a_topic_is_this_server() -> None:
    async def story(w: World) -> None:
        found = await w.ok("GET", "/lookup/v2/topic/persistent/my-tenant/my-ns/my-topic")
        assert found["brokerUrl"] == found["nativeUrl"] == "pulsar://broker.example:6650"
        assert found["httpUrl"] == "http://broker.example:8080"
        await w.refused(404, "GET", "/lookup/v2/topic/persistent/my-tenant/none/my-topic")

    play(story)


# --- tenants --------------------------------------------------------------------------------------------------


def test_tenants_create_get_update_delete() -> None:
    async def story(w: World) -> None:
        assert await w.ok("GET", T) == ["public"]
        body = {"adminRoles": ["b", "a"], "allowedClusters": ["standalone"]}
        assert (await w.ask("PUT", f"{T}/x", body)).status == 204
        assert await w.ok("GET", f"{T}/x") == {"adminRoles": ["a", "b"], "allowedClusters": ["standalone"]}
        assert await w.refused(409, "PUT", f"{T}/x", body) == "Tenant already exist"
        await w.ok("POST", f"{T}/x", TENANT)
        assert (await w.ok("GET", f"{T}/x"))["adminRoles"] == []
        assert await w.ok("GET", T) == ["public", "x"]
        assert (await w.ask("DELETE", f"{T}/x")).status == 204
        assert await w.refused(404, "DELETE", f"{T}/x") == "Tenant does not exist"
        assert await w.refused(404, "GET", f"{T}/x") == "Tenant does not exist"
        await w.refused(404, "POST", f"{T}/x", TENANT)

    play(story, namespace=False)


@pytest.mark.parametrize(
    "body",
    [{"allowedClusters": None}, {"allowedClusters": []}, {"allowedClusters": ["nowhere"]}, {}, None],
)
def test_tenants_without_a_known_cluster_are_412(body: object) -> None:
    async def story(w: World) -> None:
        await w.refused(412, "PUT", f"{T}/x", body)
        assert await w.ok("GET", T) == ["public"]

    play(story, namespace=False)


@pytest.mark.parametrize("name", ["a%20b", "a@b", "%C3%BC", "a%2Fb"])
def test_tenants_with_a_bad_name_are_412(name: str) -> None:
    async def story(w: World) -> None:
        assert await w.refused(412, "PUT", f"{T}/{name}", TENANT) == "Tenant name is not valid"

    play(story, namespace=False)


def test_tenants_with_namespaces_are_not_deleted_and_never_by_force() -> None:
    async def story(w: World) -> None:
        assert await w.refused(409, "DELETE", f"{T}/my-tenant") == "The tenant still has active namespaces"
        await w.refused(405, "DELETE", f"{T}/my-tenant?force=true")
        await w.ok("DELETE", N)
        await w.ok("DELETE", f"{T}/my-tenant")

    play(story)


# --- namespaces -----------------------------------------------------------------------------------------------


def test_namespaces_create_list_delete() -> None:
    async def story(w: World) -> None:
        assert await w.ok("GET", "/admin/v2/namespaces/my-tenant") == ["my-tenant/my-ns"]
        assert await w.refused(409, "PUT", N) == "Namespace already exists"
        await w.refused(404, "PUT", "/admin/v2/namespaces/none/x")
        await w.refused(404, "GET", "/admin/v2/namespaces/none")
        await w.refused(412, "PUT", "/admin/v2/namespaces/my-tenant/a%20b")
        assert (await w.ask("DELETE", N)).status == 204
        assert await w.refused(404, "DELETE", N) == "Namespace does not exist"
        assert await w.ok("GET", "/admin/v2/namespaces/my-tenant") == []

    play(story)


def test_namespaces_that_hold_topics_are_not_deleted_and_never_by_force() -> None:
    async def story(w: World) -> None:
        assert await w.refused(409, "DELETE", N) == "Cannot delete non empty namespace"
        await w.refused(405, "DELETE", f"{N}?force=true")
        await w.ok("DELETE", P)
        await w.ok("DELETE", N)

    play(story, topic=True)


def test_namespaces_deleted_and_made_again_have_no_policies() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/retention", {"retentionTimeInMinutes": 3, "retentionSizeInMB": 4})
        await w.ok("DELETE", N)
        await w.ok("PUT", N)
        assert (await w.ask("GET", f"{N}/retention")).status == 204

    play(story)


def test_namespaces_describe_has_the_keys_of_policies() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/messageTTL", 30)
        found = await w.ok("GET", N)
        assert found["replication_clusters"] == ["standalone"]
        assert found["bundles"]["numBundles"] == 4
        assert found["message_ttl_in_seconds"] == 30
        assert found["backlog_quota_map"] == {}
        assert found["deleted"] is False
        assert "retention_policies" not in found

    play(story)


@pytest.mark.parametrize(
    ("bundles", "status"),
    [
        ({"numBundles": 16}, 204),
        ({"boundaries": ["0x00000000", "0x7fffffff", "0xffffffff"]}, 204),
        ({"numBundles": -1}, 412),
        ({"boundaries": ["0x00000000", "0x7fffffff"]}, 412),
        ({"boundaries": ["0x00000000", "x", "0xffffffff"]}, 412),
        (7, 400),
    ],
)
def test_namespaces_bundles(bundles: object, status: int) -> None:
    async def story(w: World) -> None:
        path = "/admin/v2/namespaces/my-tenant/other"
        assert (await w.ask("PUT", path, {"bundles": bundles})).status == status
        if status == 204:
            found = await w.ok("GET", f"{path}/bundles")
            assert found["numBundles"] == len(found["boundaries"]) - 1
            assert (found["boundaries"][0], found["boundaries"][-1]) == ("0x00000000", "0xffffffff")

    play(story)


def test_namespaces_body_sets_all_policies_that_it_holds() -> None:
    async def story(w: World) -> None:
        path = "/admin/v2/namespaces/my-tenant/other"
        inactive = {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 70,
            "deleteWhileInactive": True,
        }
        await w.ok(
            "PUT",
            path,
            {
                "replication_clusters": ["standalone"],
                "backlog_quota_map": {"destination_storage": {"limitSize": 5, "policy": "producer_exception"}},
                "subscription_expiration_time_minutes": 9,
                "inactive_topic_policies": inactive,
            },
        )
        found = await w.ok("GET", path)
        assert found["backlog_quota_map"]["destination_storage"]["limitSize"] == 5
        assert found["subscription_expiration_time_minutes"] == 9
        assert found["inactive_topic_policies"] == inactive
        await w.refused(412, "PUT", f"{path}2", {"replication_clusters": ["far"]})
        await w.refused(400, "PUT", f"{path}2", {"backlog_quota_map": {"x": {}}})

    play(story)


def test_namespaces_a_scope_of_ours_below_a_tenant_is_one_and_keeps_its_data() -> None:
    async def story(w: World) -> None:
        await w.controller.scopes.create("my-tenant.mine")
        await w.controller.scopes.create("elsewhere")
        assert await w.ok("GET", "/admin/v2/namespaces/my-tenant") == ["my-tenant/mine", "my-tenant/my-ns"]
        mine = "/admin/v2/namespaces/my-tenant/mine"
        assert (await w.ask("GET", f"{mine}/retention")).status == 204
        assert (await w.controller.policies.get("my-tenant.mine")).is_empty
        await w.ok("POST", f"{mine}/retention", {"retentionTimeInMinutes": 3, "retentionSizeInMB": 4})
        await w.ok("DELETE", f"{mine}/retention")
        assert (await w.controller.policies.get("my-tenant.mine")).is_empty

    play(story)


def test_public_default_is_there_from_the_first_request_on_and_once_deleted_stays_so() -> None:
    async def story(w: World) -> None:
        from starlette.routing import Router

        from penstock.net.http.pulsar.api import pulsar_routes

        assert await w.ok("GET", "/admin/v2/namespaces/public") == ["public/default"]
        await w.ok("DELETE", "/admin/v2/namespaces/public/default")
        w.app = Router(pulsar_routes(w.controller, w.store, w.clock))
        assert await w.ok("GET", "/admin/v2/namespaces/public") == []

    play(story, namespace=False)


def test_namespaces_small_calls() -> None:
    async def story(w: World) -> None:
        assert await w.ok("GET", f"{N}/permissions") == {}
        assert await w.ok("GET", f"{N}/replication") == ["standalone"]
        await w.ok("PUT", f"{N}/unload")
        for name in ("topics", "bundles", "permissions", "replication"):
            await w.refused(404, "GET", f"/admin/v2/namespaces/my-tenant/none/{name}")

    play(story)


# --- topics ---------------------------------------------------------------------------------------------------


def test_topics_create_list_delete() -> None:
    async def story(w: World) -> None:
        assert (await w.ask("PUT", P)).status == 204
        assert await w.refused(409, "PUT", P) == "This topic already exists"
        await w.refused(404, "PUT", P.replace("my-ns", "none"))
        await w.refused(412, "PUT", f"{P}-partition-0")
        assert await w.ok("GET", LIST) == ["persistent://my-tenant/my-ns/my-topic"]
        assert await w.ok("GET", f"{LIST}/partitioned") == []
        assert await w.ok("GET", f"{P}/partitions") == {"partitions": 0, "deleted": False}
        await w.ok("PUT", f"{P}/subscription/a", "latest")
        assert (await w.ask("DELETE", P)).status == 204
        assert await w.refused(404, "DELETE", P) == "Topic persistent://my-tenant/my-ns/my-topic not found"
        assert await w.ok("GET", LIST) == []
        assert await w.controller.groups.list(NS.scope) == []

    play(story)


def test_topics_deleted_and_made_again_have_neither_subs_nor_policies() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/subscription/a", "latest")
        await w.ok("POST", f"{P}/retention", {"retentionTimeInMinutes": 3, "retentionSizeInMB": 4})
        await w.ok("DELETE", f"{P}?force=true")
        await w.ok("PUT", P)
        assert await w.ok("GET", f"{P}/subscriptions") == []
        assert (await w.ask("GET", f"{P}/retention")).status == 204

    play(story, topic=True)


def test_partitioned_topics_create_grow_delete() -> None:
    async def story(w: World) -> None:
        assert (await w.ask("PUT", f"{P}/partitions", 2)).status == 204
        await w.refused(409, "PUT", f"{P}/partitions", 2)
        await w.refused(409, "PUT", P)
        await w.ok("PUT", f"{P}-partition-1")
        assert (await w.ok("GET", f"{P}/partitions"))["partitions"] == 2
        assert (await w.ok("GET", f"{P}-partition-0/partitions"))["partitions"] == 0
        full = "persistent://my-tenant/my-ns/my-topic"
        assert await w.ok("GET", f"{LIST}/partitioned") == [full]
        assert await w.ok("GET", f"{N}/topics") == [f"{full}-partition-0", f"{full}-partition-1"]
        assert (await w.ask("POST", f"{P}/partitions", 3)).status == 204
        assert (await w.ok("GET", f"{P}/partitions"))["partitions"] == 3
        await w.ok("POST", f"{P}/partitions", 3)
        await w.refused(422, "POST", f"{P}/partitions", 1)
        await w.refused(406, "POST", f"{P}/partitions", 0)
        await w.refused(404, "GET", f"{P}-partition-3/stats")
        await w.refused(409, "DELETE", P)
        await w.refused(412, "DELETE", f"{P}-partition-0")
        assert (await w.ask("DELETE", f"{P}/partitions")).status == 204
        assert await w.ok("GET", LIST) == []

    play(story)


@pytest.mark.parametrize(("body", "status"), [(0, 406), (-1, 406), (10**6, 406), ("x", 400), ({"partitions": 3}, 204)])
def test_partitioned_topics_number_of_partitions(body: object, status: int) -> None:
    async def story(w: World) -> None:
        assert (await w.ask("PUT", f"{P}/partitions", body)).status == status

    play(story)


def test_partitioned_topics_of_one_partition_are_partitioned() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/partitions", 1)
        assert (await w.ok("GET", f"{P}/partitions"))["partitions"] == 1
        assert await w.ok("GET", LIST) == ["persistent://my-tenant/my-ns/my-topic-partition-0"]
        await w.refused(404, "GET", f"{P}/stats")

    play(story)


def test_partitions_of_a_missing_topic_make_it_where_that_is_allowed() -> None:
    async def story(w: World) -> None:
        await w.refused(404, "GET", f"{P}/partitions")
        assert (await w.ok("GET", f"{P}/partitions?checkAllowAutoCreation=true"))["partitions"] == 0
        assert await w.ok("GET", LIST) == ["persistent://my-tenant/my-ns/my-topic"]

    play(story)


def test_streams_of_ours_are_topics_and_internal_ones_are_not() -> None:
    async def story(w: World) -> None:
        scaling = ScalingPolicy(min_segments=2)
        await w.controller.streams.create(StreamName(NS.scope, "mine"), StreamConfig(scaling=scaling))
        await w.ok("PUT", f"{P}/subscription/a", "latest")
        assert await w.ok("GET", f"{LIST}/partitioned") == ["persistent://my-tenant/my-ns/mine"]
        names = await w.ok("GET", LIST)
        assert names == [
            f"persistent://my-tenant/my-ns/{name}" for name in ("mine-partition-0", "mine-partition-1", "my-topic")
        ]

    play(story)


def test_non_persistent_topics_are_not_offered() -> None:
    async def story(w: World) -> None:
        other = P.replace("/persistent/", "/non-persistent/")
        assert await w.ok("GET", "/admin/v2/non-persistent/my-tenant/my-ns") == []
        assert await w.ok("GET", f"{N}/topics?mode=NON_PERSISTENT") == []
        assert await w.ok("GET", f"{N}/topics?mode=ALL") == ["persistent://my-tenant/my-ns/my-topic"]
        assert (await w.refused(404, "GET", f"{other}/stats")).startswith("Topic non-persistent://")
        await w.refused(405, "PUT", other)
        await w.refused(405, "PUT", f"{other}/partitions", 2)
        await w.refused(405, "DELETE", f"{other}/truncate")
        assert (await w.ok("GET", f"{other}/partitions"))["partitions"] == 0

    play(story, topic=True)
