"""Pulsar's own admin command line and Java admin client, unchanged, against our HTTP port. They judge compatibility.

Not part of the default run: their jars (82 MB) come from Maven Central, into ``build/pulsar-admin``. Run by
``make test-pulsar-admin``, which sets ``PENSTOCK_PULSAR_ADMIN``.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from penstock.app.embedded import Runtime, embedded_settings, open_runtime
from penstock.codec.events import frame_events
from penstock.model.names import StreamName, segment_name
from penstock.net.http.http_server import RestServer
from penstock.net.http.pulsar.api import pulsar_routes
from penstock.ports.data.segments import NO_EVENT, Append

HERE = Path(__file__).with_name("pulsar_admin")
BUILD = Path(__file__).parents[2] / "build" / "pulsar-admin"
PATIENCE_S = 60
NS = "my-tenant/my-ns"
TOPIC = f"persistent://{NS}/my-topic"
STREAM = StreamName("my-tenant.my-ns", "my-topic")

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="session")
def classpath() -> str:
    """Where the tools are; built on first use."""
    if not os.environ.get("PENSTOCK_PULSAR_ADMIN"):
        pytest.skip("Pulsar's admin tools are downloaded by: make test-pulsar-admin")
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"Pulsar's admin tools need a JDK and Maven: there is no {tool}")
    jars, classes = BUILD / "jars", BUILD / "classes"
    project, source = HERE / "pom.xml", HERE / "AdminHost.java"
    done = BUILD / f"done-{project.stat().st_mtime_ns}-{source.stat().st_mtime_ns}"
    if not done.exists():
        classes.mkdir(parents=True, exist_ok=True)
        copy = ["mvn", "-q", "-B", "-f", str(project), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        subprocess.run(copy, check=True, timeout=1200, stdin=subprocess.DEVNULL)
        subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(classes), str(source)], check=True, timeout=120)
        done.touch()
    return f"{classes}:{jars}/*"


@dataclass
class Result:
    code: int
    out: str
    err: str


@dataclass
class Tools:
    """Pulsar's tools in a process of their own, and the store that they administer."""

    process: asyncio.subprocess.Process
    runtime: Runtime

    async def _ask(self, *words: str) -> Result:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(("\t".join(words) + "\n").encode())
        await stdin.drain()
        async with asyncio.timeout(PATIENCE_S):
            line = (await stdout.readline()).decode()
        assert line, "the tools ended"
        code, _, texts = line.strip().partition(" ")
        out, err = (base64.b64decode(text).decode() for text in texts.split(","))
        return Result(int(code), out.strip(), err.strip())

    async def cli(self, line: str) -> str:
        """What a command of ``pulsar-admin`` prints; it must succeed."""
        done = await self._ask("cli", *line.split())
        assert done.code == 0, (line, done)
        return done.out

    async def fails(self, line: str) -> str:
        """What a command that must fail says."""
        done = await self._ask("cli", *line.split())
        assert done.code == 1, (line, done)
        return done.err

    async def java(self, *words: str) -> str:
        """What a call of the Java client gives; it must succeed."""
        done = await self._ask("java", *words)
        assert done.code == 0, (words, done)
        return done.out

    async def java_fails(self, *words: str) -> str:
        done = await self._ask("java", *words)
        assert done.code == 1, (words, done)
        return done.err

    async def backlog(self, subscription: str, topic: str = TOPIC) -> int:
        stats = json.loads(await self.cli(f"topics stats {topic}"))
        return int(stats["subscriptions"][subscription]["msgBacklog"])

    async def write(self, *events: bytes, stream: StreamName = STREAM, partition: int = 0) -> None:
        current = await self.runtime.controller.layout.current(stream)
        segment, writer = segment_name(stream, current[partition].segment), UUID(int=5)
        last = await self.runtime.segments.setup_append(segment, writer)
        number = len(events) + (0 if last == NO_EVENT else last)
        request = Append(
            segment=segment,
            writer=writer,
            data=frame_events(events),
            event_number=number,
            event_count=len(events),
            previous=last,
        )
        await self.runtime.segments.append(request)


@asynccontextmanager
async def started(classpath: str, data: Path) -> AsyncIterator[Tools]:
    async with open_runtime(embedded_settings(data, {"retention_cycle_ms": 3_600_000})) as runtime:
        controller, segments, clock = runtime.controller, runtime.segments, runtime.clock
        routes = pulsar_routes(controller, segments, clock)
        async with RestServer(controller, segments, clock=clock, port=0, routes=routes) as server:
            process = await asyncio.create_subprocess_exec(
                *("java", "-Xmx512m", "-cp", classpath, "AdminHost", f"http://127.0.0.1:{server.port}"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=1 << 24,
            )
            try:
                yield Tools(process, runtime)
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()


def play(classpath: str, data: Path, story: Callable[[Tools], Awaitable[None]], *, topic: bool = True) -> None:
    """Run a story with the tenant and namespace of the manual."""

    async def run() -> None:
        async with started(classpath, data) as tools:
            await tools.cli("tenants create my-tenant")
            await tools.cli(f"namespaces create {NS}")
            if topic:
                await tools.cli(f"topics create {TOPIC}")
            await story(tools)

    asyncio.run(run())


def test_manual_retention_by_the_command_line(classpath, tmp_path):
    async def story(t: Tools) -> None:
        assert await t.cli(f"namespaces get-retention {NS}") == "null"
        for size, time, shown in (
            ("10G", "3h", (180, 10240)),
            ("1T", "-1", (-1, 1 << 20)),
            ("-1", "3h", (180, -1)),
            ("-1", "-1", (-1, -1)),
            ("0", "0", (0, 0)),
            ("500M", "10m", (10, 500)),
        ):
            assert await t.cli(f"namespaces set-retention {NS} --size {size} --time {time}") == ""
            found = json.loads(await t.cli(f"namespaces get-retention {NS}"))
            assert found == {"retentionTimeInMinutes": shown[0], "retentionSizeInMB": shown[1]}
        # The tool cuts seconds to minutes and bytes to MiB by itself: 4096 bytes are 0 MiB.
        assert "Invalid retention policy" in await t.fails(f"namespaces set-retention {NS} -t 120s -s 4096")
        await t.fails(f"namespaces set-retention {NS} --size 10G --time 0")
        await t.fails(f"namespaces set-retention {NS} --size 0 --time 3h")
        assert json.loads(await t.cli(f"namespaces get-retention {NS}"))["retentionSizeInMB"] == 500
        await t.cli(f"namespaces remove-retention {NS}")
        assert await t.cli(f"namespaces get-retention {NS}") == "null"

    play(classpath, tmp_path / "data", story)


def test_manual_retention_by_the_java_client(classpath, tmp_path):
    async def story(t: Tools) -> None:
        assert await t.java("getRetention", NS) == "null"
        await t.java("setRetention", NS, "10", "500")
        assert await t.java("getRetention", NS) == "RetentionPolicies{retentionTimeInMinutes=10, retentionSizeInMB=500}"
        assert (await t.java_fails("setRetention", NS, "0", "5")).startswith("400 ")
        assert (await t.java_fails("getRetention", "my-tenant/none")).startswith("404 NotFoundException")

    play(classpath, tmp_path / "data", story)


def test_manual_backlog_quotas_by_the_command_line(classpath, tmp_path):
    async def story(t: Tools) -> None:
        await t.cli(f"namespaces set-backlog-quota {NS} --limit 2G --policy producer_request_hold")
        found = await t.cli(f"namespaces get-backlog-quotas {NS}")
        assert "destination_storage" in found
        assert "limitSize=2147483648" in found
        assert "producer_request_hold" in found
        # The manual gives a topic here; the tool takes a namespace.
        await t.cli(
            f"namespaces set-backlog-quota {NS} --limitTime 3600 --policy producer_request_hold --type message_age"
        )
        assert "limitTime=3600" in await t.cli(f"namespaces get-backlog-quotas {NS}")
        await t.cli(
            f"topicPolicies set-backlog-quota {TOPIC} --limitTime 3600 --policy producer_request_hold --type message_age"
        )
        assert "limitTime=3600" in await t.cli(f"topicPolicies get-backlog-quota {TOPIC}")
        await t.cli(f"namespaces remove-backlog-quota {NS}")
        assert "destination_storage" not in await t.cli(f"namespaces get-backlog-quotas {NS}")
        await t.cli(f"namespaces remove-backlog-quota {NS} -t message_age")
        await t.cli(f"topicPolicies remove-backlog-quota {TOPIC} -t message_age")
        await t.cli(f"namespaces set-retention {NS} --size 1G --time 3h")
        reported = await t.fails(f"namespaces set-backlog-quota {NS} --limit 1G --policy producer_exception")
        assert "Backlog Quota exceeds configured retention quota for namespace" in reported

    play(classpath, tmp_path / "data", story)


def test_manual_backlog_quotas_by_the_java_client(classpath, tmp_path):
    async def story(t: Tools) -> None:
        await t.java("setBacklogQuota", NS)
        assert await t.java("getBacklogQuotas", NS) == "destination_storage 2147483648 3600 producer_request_hold"
        await t.java("removeBacklogQuota", NS)
        assert await t.java("getBacklogQuotas", NS) == ""

    play(classpath, tmp_path / "data", story)


def test_manual_clear_backlog_by_the_command_line(classpath, tmp_path):
    async def story(t: Tools) -> None:
        for sub in ("a", "b"):
            await t.cli(f"topics create-subscription {TOPIC} -s {sub} -m earliest")
        await t.write(*[b"event"] * 10)
        assert await t.backlog("a") == 10
        await t.cli(f"namespaces clear-backlog {NS} --force -s a")
        assert (await t.backlog("a"), await t.backlog("b")) == (0, 10)
        await t.cli(f"namespaces clear-backlog {NS} --force")
        assert await t.backlog("b") == 0
        await t.cli(f"namespaces clear-backlog {NS} --force -b 0x00000000_0x40000000")
        await t.cli(f"namespaces unsubscribe {NS} -s b")
        assert await t.cli(f"topics subscriptions {TOPIC}") == "a"

    play(classpath, tmp_path / "data", story)


def test_manual_time_to_live_by_both(classpath, tmp_path):
    async def story(t: Tools) -> None:
        assert await t.cli(f"namespaces get-message-ttl {NS}") == "null"
        await t.cli(f"namespaces set-message-ttl {NS} --messageTTL 120")
        assert await t.cli(f"namespaces get-message-ttl {NS}") == "120"
        await t.java("setNamespaceMessageTTL", NS, "60")
        assert await t.java("getNamespaceMessageTTL", NS) == "60"
        assert await t.cli(f"namespaces get-message-ttl {NS}") == "60"
        assert (await t.java_fails("setNamespaceMessageTTL", NS, "-1")).startswith("412 PreconditionFailedException")
        await t.cli(f"namespaces remove-message-ttl {NS}")
        assert await t.cli(f"namespaces get-message-ttl {NS}") == "null"
        await t.java("removeNamespaceMessageTTL", NS)

    play(classpath, tmp_path / "data", story)


def test_topic_policies_by_the_command_line(classpath, tmp_path):
    async def story(t: Tools) -> None:
        await t.cli(f"namespaces set-retention {NS} -s 10M -t 10m")
        assert await t.cli(f"topicPolicies get-retention {TOPIC}") == "null"
        assert json.loads(await t.cli(f"topicPolicies get-retention {TOPIC} -ap"))["retentionSizeInMB"] == 10
        await t.cli(f"topicPolicies set-retention {TOPIC} -t 1h -s 20M")
        found = json.loads(await t.cli(f"topicPolicies get-retention {TOPIC}"))
        assert found == {"retentionTimeInMinutes": 60, "retentionSizeInMB": 20}
        await t.cli(f"topicPolicies remove-retention {TOPIC}")
        await t.cli(f"topicPolicies set-message-ttl {TOPIC} -t 30")
        assert await t.cli(f"topicPolicies get-message-ttl {TOPIC}") == "30"
        await t.cli(f"topicPolicies remove-message-ttl {TOPIC}")
        assert await t.cli(f"topicPolicies get-message-ttl {TOPIC}") == "null"
        await t.cli(f"topicPolicies set-inactive-topic-policies {TOPIC} -e -t 2m -m delete_when_no_subscriptions")
        found = json.loads(await t.cli(f"topicPolicies get-inactive-topic-policies {TOPIC}"))
        assert (found["maxInactiveDurationSeconds"], found["deleteWhileInactive"]) == (120, True)
        await t.cli(f"topicPolicies remove-inactive-topic-policies {TOPIC}")

    play(classpath, tmp_path / "data", story)


def test_idleness_and_description_of_namespaces_by_the_command_line(classpath, tmp_path):
    async def story(t: Tools) -> None:
        await t.cli(f"namespaces set-subscription-expiration-time {NS} -t 5")
        assert await t.cli(f"namespaces get-subscription-expiration-time {NS}") == "5"
        await t.cli(f"namespaces remove-subscription-expiration-time {NS}")
        mode = "delete_when_subscriptions_caught_up"
        await t.cli(f"namespaces set-inactive-topic-policies {NS} -d -t 1h -m {mode}")
        found = json.loads(await t.cli(f"namespaces get-inactive-topic-policies {NS}"))
        assert found["inactiveTopicDeleteMode"] == mode
        assert found["deleteWhileInactive"] is False
        policies = json.loads(await t.cli(f"namespaces policies {NS}"))
        assert policies["bundles"]["numBundles"] == 4
        assert policies["replication_clusters"] == ["standalone"]
        await t.cli(f"namespaces set-persistence {NS} -e 2 -w 2 -a 2 -r 0")
        assert json.loads(await t.cli(f"namespaces get-persistence {NS}"))["bookkeeperEnsemble"] == 2

    play(classpath, tmp_path / "data", story)


def test_tenants_namespaces_and_topics_by_the_command_line(classpath, tmp_path):
    async def story(t: Tools) -> None:
        assert await t.cli("clusters list") == "standalone"
        assert "serviceUrl" in await t.cli("clusters get standalone")
        assert (await t.cli("brokers healthcheck")).endswith("ok")
        assert "penstock" in await t.cli("brokers version")
        assert (await t.cli("tenants list")).split() == ["my-tenant", "public"]
        assert json.loads(await t.cli("tenants get my-tenant"))["allowedClusters"] == ["standalone"]
        assert await t.cli("namespaces list my-tenant") == NS
        assert "already exist" in await t.fails("tenants create my-tenant")
        assert "Namespace already exists" in await t.fails(f"namespaces create {NS}")
        assert await t.cli(f"topics list {NS}") == TOPIC
        assert "non empty" in await t.fails(f"namespaces delete {NS}")
        await t.cli(f"topics create-partitioned-topic {TOPIC}-p -p 2")
        assert await t.cli(f"topics list-partitioned-topics {NS}") == f"{TOPIC}-p"
        await t.cli(f"topics update-partitioned-topic {TOPIC}-p -p 3")
        assert json.loads(await t.cli(f"topics get-partitioned-topic-metadata {TOPIC}-p"))["partitions"] == 3
        found = json.loads(await t.cli(f"topics partitioned-stats {TOPIC}-p --per-partition"))
        assert len(found["partitions"]) == 3
        assert "pulsar://127.0.0.1:6650" in await t.cli(f"topics lookup {TOPIC}")
        await t.cli(f"topics delete-partitioned-topic {TOPIC}-p")
        await t.cli(f"topics delete {TOPIC}")
        await t.cli(f"namespaces delete {NS}")
        await t.cli("tenants delete my-tenant")
        assert await t.cli("tenants list") == "public"

    play(classpath, tmp_path / "data", story)


def test_subscriptions_by_the_command_line(classpath, tmp_path):
    async def story(t: Tools) -> None:
        # Else what all have acknowledged goes at once, and nobody can go back to it.
        await t.cli(f"namespaces set-retention {NS} -s -1 -t -1")
        await t.write(*[b"event"] * 10)
        await t.cli(f"topics create-subscription {TOPIC} -s a -m earliest")
        await t.cli(f"topics create-subscription {TOPIC} -s b -m latest")
        await t.cli(f"topics create-subscription {TOPIC} -s c -m 0:4")
        assert (await t.cli(f"topics subscriptions {TOPIC}")).split() == ["a", "b", "c"]
        assert [await t.backlog(sub) for sub in "abc"] == [10, 0, 6]
        assert "Subscription already exists" in await t.fails(f"topics create-subscription {TOPIC} -s a -m earliest")
        await t.cli(f"topics skip {TOPIC} -s a -n 3")
        assert await t.backlog("a") == 7
        await t.cli(f"topics reset-cursor {TOPIC} -s a -m 0:1")
        assert await t.backlog("a") == 9
        await t.cli(f"topics reset-cursor {TOPIC} -s a -m 0:1 -e")
        assert await t.backlog("a") == 8
        await t.cli(f"topics reset-cursor {TOPIC} -s a -m latest")
        assert await t.backlog("a") == 0
        await t.cli(f"topics reset-cursor {TOPIC} -s a -m earliest")
        assert await t.backlog("a") == 10
        await t.cli(f"topics reset-cursor {TOPIC} -s b -t 1h")
        assert await t.backlog("b") == 10
        await t.cli(f"topics expire-messages {TOPIC} -s a -p 0:1")
        assert await t.backlog("a") == 8
        await t.cli(f"topics expire-messages {TOPIC} -s a -t 3600")
        assert await t.backlog("a") == 8
        await t.cli(f"topics clear-backlog {TOPIC} -s a")
        assert await t.backlog("a") == 0
        assert "Expire message by timestamp not issued" in await t.fails(f"topics expire-messages {TOPIC} -s a -t 5")
        await t.cli(f"topics expire-messages-all-subscriptions {TOPIC} -t 3600")
        assert int(await t.cli(f"topics get-backlog-size {TOPIC} -m 0:0")) > 0
        assert json.loads(await t.cli(f"topics analyze-backlog {TOPIC} -s c"))["messages"] == 6
        await t.cli(f"topics unsubscribe {TOPIC} -s b")
        assert "not found" in await t.fails(f"topics unsubscribe {TOPIC} -s b -f")
        found = json.loads(await t.cli(f"topics stats-internal {TOPIC}"))
        assert found["cursors"]["c"]["readPosition"] == "0:4"
        assert found["lastConfirmedEntry"] == "0:9"
        assert json.loads(await t.cli(f"topics last-message-id {TOPIC}"))["entryId"] == 9
        await t.cli(f"topics trim-topic {TOPIC}")
        await t.cli(f"topics truncate {TOPIC}")
        assert (await t.java("stats", TOPIC)).split() == ["0", "0", "a=0", "c=0"]

    play(classpath, tmp_path / "data", story)


def test_acknowledged_data_goes_and_unread_data_stays_by_the_command_line(classpath, tmp_path):
    async def story(t: Tools) -> None:
        await t.cli(f"topics create-subscription {TOPIC} -s a -m earliest")
        await t.write(*[b"event"] * 10)
        await t.cli(f"topics skip {TOPIC} -s a -n 4")
        await t.cli(f"topics trim-topic {TOPIC}")
        found = json.loads(await t.cli(f"topics stats {TOPIC} -gpb -sbs"))
        assert found["storageSize"] == found["backlogSize"] == 6 * 13
        await t.cli(f"namespaces set-retention {NS} -s -1 -t -1")
        await t.cli(f"topics clear-backlog {TOPIC} -s a")
        await t.cli(f"topics trim-topic {TOPIC}")
        assert json.loads(await t.cli(f"topics stats {TOPIC}"))["storageSize"] == 6 * 13
        await t.cli(f"namespaces set-retention {NS} -s 0 -t 0")
        await t.cli(f"topics trim-topic {TOPIC}")
        assert json.loads(await t.cli(f"topics stats {TOPIC}"))["storageSize"] == 0

    play(classpath, tmp_path / "data", story)
