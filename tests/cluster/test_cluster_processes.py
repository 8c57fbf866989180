"""Stores and controllers as real processes, killed one after the other while events are written."""

from __future__ import annotations

import signal
import time
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock.model.errors import QuotaExceededError
from tests.cluster.clicks_kit import KEYS, SEGMENTS, Writing, holders, read
from tests.cluster.cluster_processes import ClusterOfProcesses, ClusterProcess

pytestmark = pytest.mark.cluster


def appended(controller: ClusterProcess) -> dict[str, float]:
    """How many events each store has appended since it was started, as the active controller shows it to Prometheus."""
    with urllib.request.urlopen(f"http://{controller.facts['http']}/metrics") as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    samples = [
        sample
        for family in families
        for sample in family.samples
        if sample.name == "penstock_wire_appended_events_total"
    ]
    return {one.labels["process"]: one.value for one in samples if one.labels["process"] != "server"}


def test_events_outlive_a_store_and_the_active_controller(zookeeper, bookies, tmp_path):
    with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root) as cluster:
        stores = [cluster.store(f"s{number}") for number in range(2)]
        for number in range(2):
            cluster.controller(f"c{number}")
        first, address = cluster.active(), cluster.controllers
        cluster.run("stream", "create", "shop/clicks", "--segments", str(SEGMENTS), "--controller", address)
        cluster.until(lambda: len(holders(cluster)) == 2)
        with Writing(address, 0) as writing:
            writing.rounds(20)
            assert set(appended(first)) == {"store s0", "store s1"}
            assert sum(appended(first).values()) > 0
            stores[0].kill()
            writing.rounds(20)
            store_s = writing.longest_s
            cluster.until(lambda: not cluster.status()["unserved"])
            key = cluster.run("audit", "key", "--controller", address)
            first.kill()
            began = time.monotonic()
            second = cluster.active()
            failover_s = time.monotonic() - began
            writing.rounds(20)
            # From here on the writer needs the second controller, to find the containers of the other store.
            stores[0].start()
            cluster.until(lambda: stores[0].facts != {})
            stores[1].kill()
            cluster.until(lambda: holders(cluster) == {"s0"} and not cluster.status()["unserved"])
            writing.rounds(20)
        assert second is not first
        assert second.facts["term"] == 2
        # The second controller has not made it, and continues the log with it.
        cluster.run("audit", "checkpoint", str(tmp_path / "note"), "--controller", address)
        assert cluster.run("audit", "key", "--controller", address) == key
        third = first.start()
        cluster.until(lambda: third.facts.get("role") == "standby")
        expected = {key: list(range(writing.next)) for key in KEYS}
        assert read(address) == expected, "once, and in order per key"

        assert second.end(signal.SIGTERM) == 0, second.tail()
        assert cluster.active() is third
        assert read(address) == expected
        print(f"a writer waited {store_s:.1f} s for a store, another controller was active after {failover_s:.1f} s")


def test_a_drained_store_is_empty_and_a_paused_controller_is_not_active_any_more(zookeeper, bookies, tmp_path):
    with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root) as cluster:
        for number in range(2):
            cluster.store(f"s{number}")
            cluster.controller(f"c{number}")
        first, address = cluster.active(), cluster.controllers
        cluster.run("stream", "create", "shop/clicks", "--segments", str(SEGMENTS), "--controller", address)
        cluster.until(lambda: len(holders(cluster)) == 2)
        with Writing(address, 0) as writing:
            writing.rounds(5)
            cluster.run("cluster", "drain", "s0", "--cluster", cluster.url)
            assert holders(cluster) == {"s1"}
            writing.rounds(5)

            first.facts = {}
            first.signal(signal.SIGSTOP)
            second = cluster.active()
            assert second is not first
            first.signal(signal.SIGCONT)
            assert first.wait() == 5, "as another error that passes"
            assert "may no longer be the active one" in first.tail()
            writing.rounds(5)
        assert read(address) == {key: list(range(writing.next)) for key in KEYS}
        print(f"longest round of a writer {writing.longest_s:.1f} s")


def test_a_process_with_another_secret_is_refused_and_the_secret_changes_without_a_pause(zookeeper, bookies, tmp_path):
    with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root) as cluster:
        again = cluster.run(*cluster.init, "--json")
        assert '"created": false' in again, "a repetition changes nothing"
        (tmp_path / "other").write_text("ab" * 32)
        (tmp_path / "other").chmod(0o600)
        stranger = cluster.controller("c9", secret=tmp_path / "other")
        assert stranger.wait(30) not in (0, 1)
        assert "copy the file from a machine whose processes run" in stranger.tail()
        stores = [cluster.store(f"s{number}") for number in range(2)]
        controllers = [cluster.controller(f"c{number}") for number in range(2)]
        cluster.active()
        cluster.until(lambda: len(holders(cluster)) == 2)
        change = ("cluster", "secret", "change", "--cluster", cluster.url, "--secret-file", str(cluster.secret))
        finish = ("cluster", "secret", "finish", *change[3:])
        address = cluster.controllers
        cluster.run("stream", "create", "shop/clicks", "--segments", str(SEGMENTS), "--controller", address)
        with Writing(address, 0) as writing:
            writing.rounds(2)
            cluster.run(*change)
            for one in (*stores, *controllers):
                one.end(signal.SIGTERM)
                one.start()
                cluster.until(lambda one=one: one.facts.get("name") == one.name and len(holders(cluster)) == 2)
                writing.rounds(2)
            earlier = cluster.secret.read_text()
            cluster.run(*finish)
            writing.rounds(2)
            stores[0].end(signal.SIGTERM)
            stores[0].start()
            cluster.until(lambda: len(holders(cluster)) == 2)
            writing.rounds(2)
        assert len(cluster.secret.read_text().split()) == 1
        assert cluster.secret.read_text() in earlier
        assert read(address) == {key: list(range(writing.next)) for key in KEYS}
        (tmp_path / "other").write_text(earlier.split()[1])
        stranger.start()
        assert stranger.wait(30) not in (0, 1), "the earlier secret is refused"


def write_until_rejected(stream: Any, most: int) -> int:
    """How many events were accepted, each before the next one was sent."""
    written = 0
    try:
        with stream.writer(deadline_s=60.0) as writer:
            while written < most:
                writer.write(b"%d" % written, key=KEYS[written % len(KEYS)])
                writer.flush()
                written += 1
    except QuotaExceededError:
        return written
    return written


def test_a_quota_over_several_stores_is_reached_exactly(zookeeper, bookies, tmp_path):
    with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root) as cluster:
        for number in range(2):
            cluster.store(f"s{number}")
        cluster.controller("c0")
        cluster.active()
        cluster.until(lambda: len(holders(cluster)) == 2)
        with penstock.connect(cluster.controllers) as store:
            stream = store.create_stream("shop/clicks", segments=SEGMENTS, create_scope=True)
            group = store.reader_group("shop/slow", ["shop/clicks"], retention="manual")
            stream.retention.set({"backlog": {"max_events": 100, "on_exceed": "reject"}})
            written = write_until_rejected(stream, 200)
            assert written == 100, "nobody is rejected while there is room in another store"
            (subscriber,) = stream.subscribers()
            assert subscriber.lag_events == 100
            group.publish(stream.tail())

            cluster.until(lambda: write_until_rejected(stream, 1) == 1)


def test_the_cluster_serves_everything_although_no_controller_reaches_one_of_its_stores(zookeeper, bookies, tmp_path):
    """All containers are there at first, that of the controllers' own table too."""
    with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root) as cluster:
        cluster.store("s0", "--advertise", "127.0.0.2")  # it listens on 127.0.0.1 only
        for number in range(2):
            cluster.controller(f"c{number}")
        cluster.until(lambda: holders(cluster) == {"s0"} and not cluster.status()["unserved"])
        cluster.store("s1")
        cluster.until(lambda: holders(cluster) == {"s1"} and not cluster.status()["unserved"], timeout_s=180.0)
        cluster.active()
        cluster.run("stream", "create", "shop/clicks", "--segments", "6", "--controller", cluster.controllers)
        with penstock.connect(cluster.controllers) as store, store.stream("shop/clicks").writer() as writer:
            for key in KEYS:
                writer.write(b"event", key=key)
