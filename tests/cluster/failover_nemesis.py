"""Failures of the parts of a cluster of real processes, one after another, and how long each container is away.

A *failure* is one of the ``KINDS``. After each, the run waits until every container has acknowledged an event that was
sent after the failure, and until all is as before. A *takeover* is one container that the failed store held and that a
store has opened since: a killed store with eight containers is one failure and eight takeovers.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.cluster.failover_facts import ELECTED, Probe, first_after, parse_probes, whole_lines
from tests.cluster.failover_kit import LOAD, PATIENCE_S, FailoverCluster, FailoverError, Node, Sizes, judged, load

(
    KILL_STORE,
    PAUSE_STORE,
    KILL_CONTROLLER,
    KILL_BOOKIE,
    DRAIN,
    KILL_ZOOKEEPER,
    CUT_ZOOKEEPER,
    CUT_BOOKIES,
    CUT_CLIENTS,
) = KINDS = (
    "store killed",
    "store paused",
    "controller killed",
    "bookie killed",
    "store drained",
    "ZooKeeper member killed",
    "store cut off from ZooKeeper",
    "store cut off from bookies",
    "store cut off from clients",
)
LASTING = (DRAIN, KILL_ZOOKEEPER, CUT_ZOOKEEPER)
"""Containers serve for a while after these begin: what counts is the longest wait for an acknowledgement until all is as
before. After other failures it is the time from the failure to the first acknowledgement of an event sent after it."""
CUTS = (CUT_ZOOKEEPER, CUT_BOOKIES, CUT_CLIENTS)
PAUSE_S = (1.0, 15.0)
"""Shorter and longer than a session: a store that is paused or cut off may still own its containers afterwards, or not."""
LOSSES_MAX = 2
"""Losses of one name. One more and the store would get no containers for ten minutes; a new machine takes its place."""


class Nemesis:
    """Makes one failure after another, of each kind equally often, and notes how long containers were away.

    ``slowest_s``: for each failure, the seconds of the slowest container. ``takeovers_s``: for each takeover, its own.
    """

    def __init__(self, cluster: FailoverCluster, rng: random.Random, kinds: Sequence[str] = KINDS) -> None:
        self.slowest_s: dict[str, list[float]] = defaultdict(list)
        self.takeovers_s: dict[str, list[float]] = defaultdict(list)
        self._cluster = cluster
        self._rng = rng
        self._kinds = kinds
        self._order: list[str] = []
        self._moment_s = 0.0
        self._start = 0  # the notes of probes before this byte are older than the failure
        self._losses: dict[str, int] = defaultdict(int)
        self._epochs: Mapping[int, int] = {}
        self._victims: Sequence[int] = ()  # containers of the store that fails
        self._does = {
            KILL_STORE: self._kill_store,
            PAUSE_STORE: self._pause_store,
            KILL_CONTROLLER: self._kill_controller,
            KILL_BOOKIE: self._kill_bookie,
            DRAIN: self._drain,
            KILL_ZOOKEEPER: self._kill_zookeeper,
            CUT_ZOOKEEPER: self._cut_zookeeper,
            CUT_BOOKIES: self._cut_bookies,
            CUT_CLIENTS: self._cut_clients,
        }

    def strike(self) -> str:
        """One failure. Returns what was done. Raises FailoverError: a container did not come back."""
        if not self._order:
            self._order = self._rng.sample(self._kinds, len(self._kinds))
        kind = self._order.pop()
        time.sleep(self._rng.uniform(0.5, 2.0))
        self._victims = list[int]()
        self._epochs = self._cluster.epochs()
        self._failed()
        with self._does[kind]() as what:
            self._cluster.wait(lambda: self._all_since(self._moment_s), f"{kind}: {what}")
            away_s = self._back()
        self._cluster.wait_until_steady()
        if kind in LASTING:
            steady_s = time.monotonic()
            self._cluster.wait(lambda: self._all_since(steady_s), f"{kind}: {what}")
            away_s = self._waits()
        slowest_s = max(away_s.values())
        self.slowest_s[kind].append(slowest_s)
        epochs = self._cluster.epochs()
        taken = [number for number in self._victims if epochs[number] > self._epochs[number]]
        self.takeovers_s[kind] += [away_s[number] for number in taken]
        return f"{kind}: {what}, {slowest_s:.2f} s, {len(taken)} takeovers"

    def _failed(self) -> None:
        """The failure is complete: what is sent from now on, the part that failed does not see."""
        self._start = (self._cluster.notes / "probes").stat().st_size
        self._moment_s = time.monotonic()

    def _probes(self) -> Sequence[Probe]:
        return parse_probes(whole_lines(self._cluster.notes / "probes", self._start))

    def _back(self) -> Mapping[int, float]:
        return first_after(self._probes(), self._moment_s)

    def _all_since(self, moment_s: float) -> bool:
        """Whether each container has acknowledged an event that was sent since."""
        return len(first_after(self._probes(), moment_s)) == self._cluster.sizes.containers

    def _waits(self) -> Mapping[int, float]:
        """The longest wait for an acknowledgement of each container since the failure."""
        longest_s: dict[int, float] = defaultdict(float)
        for probe in self._probes():
            longest_s[probe.container] = max(longest_s[probe.container], probe.acked_s - probe.sent_s)
        return longest_s

    def _owner(self) -> Node:
        """A store that serves containers. They are those that may be taken over."""
        held = {number: entry.store for number, entry in self._cluster.held().items() if entry.serving}
        name = self._rng.choice(sorted(set(held.values())))
        self._victims = sorted(number for number, store in held.items() if store == name)
        return self._cluster.stores[name]

    def _lost(self, store: Node) -> None:
        """Bring back a store whose process has ended: on the same machine, or on another one."""
        self._losses[store.name] += 1
        if self._losses[store.name] >= LOSSES_MAX or self._rng.random() < 0.5:
            del self._cluster.stores[store.name]
            store = self._cluster.new_store()
        store.start()

    @contextmanager
    def _kill_store(self) -> Iterator[str]:
        store = self._owner()
        store.kill()
        self._failed()
        yield store.name
        self._lost(store)

    @contextmanager
    def _pause_store(self) -> Iterator[str]:
        store, pause_s = self._owner(), self._rng.uniform(*PAUSE_S)
        store.pause()
        self._failed()
        try:
            time.sleep(pause_s)
        finally:
            store.signal(signal.SIGCONT)
        yield f"{store.name} for {pause_s:.1f} s"
        self._retire(store)

    def _retire(self, store: Node) -> None:
        """Count a loss of a store that still runs. Replace it before it would get no more containers."""
        self._losses[store.name] += 1
        if self._losses[store.name] >= LOSSES_MAX:
            store.kill()
            self._lost(store)

    @contextmanager
    def _cut(self, store: Node, name: str, ports: Collection[int]) -> Iterator[str]:
        """No bytes between the process ``name`` and the ports for a while, and none are lost."""
        pause_s = self._rng.uniform(*PAUSE_S)
        self._cluster.relays.cut(name, ports)
        self._failed()
        try:
            time.sleep(pause_s)
        finally:
            self._cluster.relays.heal(name, ports)
        yield f"{store.name} for {pause_s:.1f} s"

    @contextmanager
    def _cut_zookeeper(self) -> Iterator[str]:
        store = self._owner()
        with self._cut(store, store.name, self._cluster.zookeeper.ports) as what:
            yield what
        self._retire(store)

    @contextmanager
    def _cut_bookies(self) -> Iterator[str]:
        store = self._owner()
        with self._cut(store, store.name, self._cluster.bookies.ports) as what:
            yield what

    @contextmanager
    def _cut_clients(self) -> Iterator[str]:
        store = self._owner()
        with self._cut(store, LOAD, [store.port]) as what:
            yield what

    @contextmanager
    def _kill_zookeeper(self) -> Iterator[str]:
        leader = self._cluster.zookeeper.leader()
        # The first time the leader, for short runs: only its death means an election.
        member = self._rng.choice(self._cluster.zookeeper.servers) if self.slowest_s[KILL_ZOOKEEPER] else leader
        role = "leader" if member is leader else "follower"
        member.kill()
        self._failed()
        yield f"{role} on port {member.port}"
        member.start()

    @contextmanager
    def _kill_controller(self) -> Iterator[str]:
        name = self._cluster.active()
        if name is None:
            raise FailoverError("no controller is active")
        controller = self._cluster.controllers[name]
        controller.kill()
        self._failed()
        yield name
        self._cluster.wait(lambda: self._cluster.active() not in (None, name), "another controller is active")
        self.slowest_s[ELECTED].append(time.monotonic() - self._moment_s)
        controller.start()

    @contextmanager
    def _kill_bookie(self) -> Iterator[str]:
        bookie = self._rng.choice(self._cluster.bookies.servers)
        bookie.kill()
        self._failed()
        yield f"port {bookie.port}"
        self._cluster.wait(lambda: not self._cluster.bookies.registered(bookie.port), "the bookie's session ends")
        bookie.start()

    @contextmanager
    def _drain(self) -> Iterator[str]:
        store = self._owner()
        self._cluster.command("drain", store.name, "--cluster", self._cluster.address)
        yield store.name
        self._cluster.command("undrain", store.name, "--cluster", self._cluster.address)


def run(
    directory: Path, failures: int, seed: int, *, sizes: Sizes | None = None, kinds: Sequence[str] = KINDS
) -> dict[str, Any]:
    """Make that many failures, and return the summary. Raises FailoverError: the cluster or the load did not recover."""
    sizes = replace(
        sizes or Sizes(),
        zookeepers=3 if KILL_ZOOKEEPER in kinds else 1,
        relayed=any(kind in CUTS for kind in kinds),
    )
    with FailoverCluster(directory, sizes) as cluster:
        nemesis = Nemesis(cluster, random.Random(seed), kinds)
        with load(cluster) as writing:
            for _ in range(failures):
                print(nemesis.strike(), file=sys.stderr, flush=True)
                if any(one.poll() is not None for one in writing):
                    raise FailoverError(f"the load has ended: {(cluster.directory / 'load.log').read_text()[-2000:]}")
            (cluster.notes / "stop").touch()
            status = max(abs(one.wait(PATIENCE_S)) for one in writing)
        return {
            "seed": seed,
            "stores": sizes.stores,
            "containers": sizes.containers,
            "zookeepers": sizes.zookeepers,
            "load_status": status,
            "restarts": cluster.restarts,
            **judged(cluster),
            "failures": _rounded(nemesis.slowest_s),
            "takeovers": _rounded(nemesis.takeovers_s),
        }


def _rounded(seconds: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {kind: [round(one, 2) for one in seconds[kind]] for kind in sorted(seconds) if seconds[kind]}
