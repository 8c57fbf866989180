"""What retention promises, held in a cluster while stores and controllers are killed and containers move: a random history.

Seen from outside alone: clients, the command line, and the processes.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import penstock
from penstock.model.cuts import StreamCut
from penstock.model.errors import PenstockError
from tests.cluster.cluster_processes import ClusterOfProcesses, ClusterProcess

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

STREAM = "shop/clicks"
KEYS = [f"key-{number}" for number in range(8)]
GROUPS = ("shop/a", "shop/b")
EVENT = "{key} {number:08} " + "x" * 500
LEAST_BYTES = 20_000
STEPS = 40
PATIENCE_S = 120.0

Numbers = Mapping[str, int]
"""For each key, the number of its first event that a position has after it."""


class History:
    """What was done, and what must hold. ``next``: numbers of the next events. ``places``: earlier tails."""

    def __init__(self, cluster: ClusterOfProcesses, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.next = dict.fromkeys(KEYS, 0)
        self.places: list[tuple[StreamCut, Numbers]] = []
        self.acknowledged: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self.held: dict[str, Numbers] = {}
        self.stores = [cluster.store(f"s{number}") for number in range(3)]
        self.controllers = [cluster.controller(f"c{number}") for number in range(2)]
        cluster.active()
        self.store = penstock.connect(cluster.controllers)
        self.stream = self.store.create_stream(STREAM, segments=4, create_scope=True)
        self.stream.retention.set(
            {"retain": {"min_bytes": LEAST_BYTES, "max_bytes": 1 << 40}, "unsubscribed": "release"}
        )
        for group in GROUPS:
            self.store.reader_group(group, [STREAM], retention="manual")
        self.note()
        for group in GROUPS:
            self.acknowledge(group, 0)

    def insist(self, work: Callable[[], Any]) -> Any:
        """The result of a call that may be repeated. Failovers may take longer than a client waits."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            try:
                return work()
            except PenstockError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.5)

    def note(self) -> None:
        self.places.append((self.insist(self.stream.tail), dict(self.next)))

    # --- what users do

    def write(self) -> None:
        with self.stream.writer(deadline_s=PATIENCE_S) as writer:
            for _ in range(self.rng.randrange(20, 120)):
                key = self.rng.choice(KEYS)
                writer.write(EVENT.format(key=key, number=self.next[key]), key=key)
                self.next[key] += 1
        self.note()

    def acknowledge(self, group: str, place: int) -> None:
        self.insist(lambda: self.stream.set_acknowledged(group, self.places[place][0]))
        self.acknowledged[group] = place

    def acknowledge_more(self) -> None:
        for group in self.rng.choice([GROUPS, GROUPS[:1], GROUPS[1:]]):
            self.acknowledge(group, self.rng.randrange(self.acknowledged[group], len(self.places)))

    def hold(self) -> None:
        if self.held:
            return
        name = f"case-{self.rng.randrange(1 << 30)}"
        self.insist(lambda: self.stream.retention.holds.add(owner="legal", reason="a case", hold_id=name))
        self.held[name] = self.first()

    def release(self) -> None:
        if self.held:
            name = self.rng.choice(sorted(self.held))
            # Whether a call whose answer was lost has happened, the list says.
            while name in {hold.id for hold in self.insist(self.stream.retention.holds.list)}:
                self.insist(lambda: self._released(name))
            del self.held[name]

    def _released(self, name: str) -> None:
        try:
            self.stream.retention.holds.release(name, owner="legal")
        except penstock.NotFoundError:
            return

    def run_retention(self) -> None:
        """A plan for now is what a cycle then does, if nothing else happens meanwhile."""
        plan = self.insist(self.stream.retention.plan)
        done = self.insist(self.stream.retention.run)
        assert done.frees_bytes <= plan.frees_bytes, (plan, done)  # less if the call was repeated
        again = self.insist(self.stream.retention.plan)
        assert again.frees_bytes == 0, (plan, again)

    def crash(self) -> None:
        victim = self.rng.choice([*self.stores, *self.controllers])
        victim.kill()
        if self.rng.random() < 0.5:
            self.restart(victim)
        else:
            self.write()  # with what is left
            self.restart(victim)

    def restart(self, victim: ClusterProcess) -> None:
        victim.start()
        self.cluster.until(lambda: victim.facts != {})

    def move(self) -> None:
        number, store = self.rng.randrange(4), self.rng.choice(self.stores).name
        self.cluster.run("cluster", "move", str(number), store, "--cluster", self.cluster.url)
        self.cluster.run("cluster", "unpin", str(number), "--cluster", self.cluster.url)

    # --- what must hold

    def needed(self) -> Numbers:
        """For each key, the first event that someone may still want."""
        wanted = [self.places[place][1] for place in self.acknowledged.values()] + list(self.held.values())
        return {key: min(numbers[key] for numbers in wanted) for key in KEYS}

    def all_events(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {key: [] for key in KEYS}
        with self.stream.reader(start="head", until_tail=True) as reader:
            for event in reader:
                key, number, _ = event.data.decode().split()
                found[key].append(int(number))
        return found

    def first(self) -> Numbers:
        """For each key, its first event; the next number if there is none."""
        found = self.insist(self.all_events)
        return {key: numbers[0] if numbers else self.next[key] for key, numbers in found.items()}

    def check(self) -> None:
        needed = self.needed()
        for key, numbers in self.insist(self.all_events).items():
            first = numbers[0] if numbers else self.next[key]
            assert first <= needed[key], f"{key}: {first} is the first, {needed[key]} is needed"
            assert numbers == list(range(first, self.next[key])), f"{key}: gaps, or out of order"

    def check_audit(self) -> None:
        """Each removal begins where the one before has ended, so none is missing and none is there twice."""
        entries = [
            entry
            for entry in self.insist(lambda: [dict(one) for one in self.audit()])
            if entry["kind"] == "truncate" and entry["target"] == STREAM
        ]
        assert len(entries) >= 3, "a history with fewer removals shows little"
        for earlier, later in zip(entries, entries[1:], strict=False):
            assert later["before"] == earlier["after"], (earlier, later)
        head = self.insist(self.stream.head)
        assert {int(number): offset for number, offset in entries[-1]["after"].items()} == dict(head.positions)
        print(f"{len(entries)} removals, {sum(entry['events'] for entry in entries)} events")

    def audit(self) -> list[Mapping[str, Any]]:
        lines = self.cluster.run("retention", "audit", STREAM, "--json", "--controller", self.cluster.controllers)
        return [json.loads(line) for line in lines.splitlines()]  # oldest first

    def settle(self) -> None:
        """At the end nobody wants anything: what is left is what the policy keeps at least, up to a record."""
        while self.held:
            self.release()
        self.release_all()
        found = self.insist(self.stream.describe)
        assert found.size_bytes < 10 * LEAST_BYTES, found
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.insist(self.stream.describe)).disk_bytes > found.written_bytes / 3:
            assert time.monotonic() < deadline, f"tier 2 has {found.disk_bytes} of {found.written_bytes} bytes"
            # The chunk with the first byte that is kept stays as a whole, so more must follow it.
            self.write()
            self.release_all()
            time.sleep(1.0)
        print(f"{found.written_bytes} bytes written, {found.size_bytes} kept, {found.disk_bytes} in tier 2")

    def release_all(self) -> None:
        for group in GROUPS:
            self.acknowledge(group, len(self.places) - 1)
        self.insist(self.stream.retention.run)


@pytest.mark.parametrize("seed", [1, 2])
def test_retention_keeps_its_promises_through_failovers(zookeeper, bookies, tmp_path, seed):
    with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root) as cluster:
        history = History(cluster, seed)
        steps = [
            *(history.write,) * 4,
            *(history.acknowledge_more,) * 4,
            *(history.run_retention,) * 4,
            *(history.crash,) * 3,
            history.move,
            *(history.hold, history.release, history.release, history.release),
        ]
        history.write()
        for number in range(STEPS):
            step = history.rng.choice(steps)
            print(f"{number:3} {step.__name__}", flush=True)
            step()
            history.check()
        history.settle()
        history.check_audit()
        history.store.close()
