"""A cluster of real processes under load, for ``failover_nemesis`` to fail parts of it.

ZooKeeper, bookies, stores, controllers and the load are processes of their own on one machine. What clients saw is
judged from the files of ``failover_load``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import penstock
from penstock.codec.store.cluster_nodes import (
    CONTAINERS,
    CONTROLLERS,
    HOLDERS,
    STORES,
    ControllerEntry,
    HeldContainer,
    decode_node,
)
from penstock.codec.store.container_record import decode_record
from tests.cluster import failover_load
from tests.cluster.failover_facts import (
    Counters,
    event_anomalies,
    first_after,
    parse_probes,
    whole_lines,
)
from tests.cluster.failover_places import parse_placed, place_anomalies
from tests.cluster.relays import Relays

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import cluster_engines

engines_missing = cluster_engines.missing
"""Why the engines cannot be started here, or None."""
ROOT = "/penstock/failover"
LOAD = "load"
PATIENCE_S = 180.0
"""For anything to happen: the machine is shared, and takeovers wait for sessions to end."""
POLL_S = 0.1
STORES_MAX = 200
"""Names of stores in one run."""


class FailoverError(Exception):
    """The cluster did not recover; the text says what was waited for."""


class Node:
    """One process of the cluster, and its log."""

    def __init__(self, name: str, directory: Path, command: Sequence[str], port: int = 0) -> None:
        """``port``: where clients reach it."""
        self.name = name
        self.port = port
        self.log = directory / f"{name}.log"
        self._command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.killed = False

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself, as a controller does whose session is over."""
        return self.process is not None and self.process.poll() is not None and not self.killed

    def start(self) -> None:
        self.killed = False
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.process is None:
            raise FailoverError(f"{self.name} was not started")
        self.process.send_signal(number)

    def pause(self) -> None:
        """Stop it where it stands, and wait until it does."""
        self.signal(signal.SIGSTOP)
        while self.process is not None and _state(self.process.pid) not in "TZX":
            time.sleep(0.001)

    def kill(self) -> None:
        """``kill -9``, and wait for the end."""
        self.killed = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:]) if self.log.exists() else ""


def _state(pid: int) -> str:
    """The letter of the process's state in Linux: T stopped, Z and X ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    containers: int = 8
    stores: int = 3
    controllers: int = 2
    bookies: int = 3
    zookeepers: int = 1
    relayed: bool = False
    """Whether connections of stores and of the load go through relays, which can be cut."""


class FailoverCluster:
    """Starts and ends with its ``with`` block."""

    def __init__(self, directory: Path, sizes: Sizes) -> None:
        self.directory = directory
        self.sizes = sizes
        self.stores: dict[str, Node] = {}
        self.controllers: dict[str, Node] = {}
        self.notes = directory / "notes"
        self.restarts = 0
        """Of processes that ended by themselves: a supervisor would start them again."""
        self._stack = ExitStack()
        self._made = 0

    def __enter__(self) -> FailoverCluster:
        with ExitStack() as stack:
            self.notes.mkdir(parents=True)
            self.relays = stack.enter_context(Relays(self.notes))
            self.zookeeper = stack.enter_context(
                cluster_engines.ZooKeeper(self.directory, members=self.sizes.zookeepers)
            )
            self.bookies = stack.enter_context(
                cluster_engines.Bookies(self.directory, self.zookeeper.address, bookies=self.sizes.bookies)
            )
            self.address = f"zk://{self.zookeeper.address}{ROOT}"
            self._nodes = KazooClient(self.zookeeper.address, read_only=True)
            self._nodes.start()
            stack.callback(self._nodes.close)
            stack.callback(self._nodes.stop)
            stack.callback(self._kill_all)
            self._init()
            ports = cluster_engines.free_ports(self.sizes.controllers + STORES_MAX)
            self._ports, self._store_ports = ports[: self.sizes.controllers], ports[self.sizes.controllers :]
            for number in range(self.sizes.controllers):
                self._controller(number).start()
            for _ in range(self.sizes.stores):
                self.new_store().start()
            self.wait_until_steady()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _kill_all(self) -> None:
        for node in (*self.stores.values(), *self.controllers.values()):
            node.kill()

    # --- the processes' commands ---

    def command(self, *options: str) -> str:
        """Run ``penstock cluster``, and return what it prints."""
        command = [sys.executable, "-m", "penstock", "cluster", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        if done.returncode:
            raise FailoverError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _init(self) -> None:
        tier = self.directory / "tier2"
        tier.mkdir()
        self.command(
            *("init", "--cluster", self.address, "--tier2", str(tier), "--secret-file", str(self.directory / "secret")),
            *("--containers", str(self.sizes.containers)),
        )

    def _joined(self, verb: str, name: str) -> Sequence[str]:
        """What stores and controllers have in common."""
        return (
            *("penstock", verb, "--cluster", self.address, "--name", name, "--data", str(self.directory / name)),
            *("--secret-file", str(self.directory / "secret")),
        )

    def new_store(self) -> Node:
        """Another machine: a name and a directory that were never used."""
        self._made += 1
        name = f"store-{self._made}"
        port = self._store_ports.pop()
        command: Sequence[str] = (*self._joined("store", name), "--port", str(port), "--links-port", "0")
        if self.sizes.relayed:
            self.relays.between(name, *self.zookeeper.ports, *self.bookies.ports)
            self.relays.between(LOAD, port)
            command = self.relays.command(name, *command)
        self.stores[name] = Node(name, self.directory, command, port)
        return self.stores[name]

    def _controller(self, number: int) -> Node:
        name = f"controller-{number + 1}"
        command = (
            *self._joined("controller", name),
            *("--controller-port", str(self._ports[number]), "--http-port", "0", "--retention-cycle", "1h"),
        )
        self.controllers[name] = Node(name, self.directory, command)
        return self.controllers[name]

    @property
    def clients(self) -> str:
        """The addresses for clients."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    # --- what the coordinator says ---

    def _children(self, folder: str) -> Sequence[str]:
        names: Sequence[str] = self._nodes.retry(self._nodes.get_children, f"{ROOT}/{folder}")
        return names

    def _node(self, path: str) -> bytes:
        return bytes(self._nodes.retry(self._nodes.get, f"{ROOT}/{path}")[0])

    def _all(self, folder: str, kind: type[Any]) -> dict[str, Any]:
        found = {}
        for name in self._children(folder):
            try:
                found[name] = decode_node(kind, self._node(f"{folder}/{name}"))
            except NoNodeError:
                continue
        return found

    def held(self) -> Mapping[int, HeldContainer]:
        return {int(number): entry for number, entry in self._all(HOLDERS, HeldContainer).items()}

    def epochs(self) -> Mapping[int, int]:
        """How often each container was opened by a store: each opening takes it over."""
        numbers = range(self.sizes.containers)
        return {number: decode_record(self._node(f"{CONTAINERS}/{number}")).epoch for number in numbers}

    def owners(self) -> dict[str, int]:
        """How many containers each store serves."""
        counts: dict[str, int] = defaultdict(int)
        for entry in self.held().values():
            counts[entry.store] += entry.serving
        return dict(counts)

    def registered(self) -> set[str]:
        return set(self._children(STORES))

    def active(self) -> str | None:
        entries: dict[str, ControllerEntry] = self._all(CONTROLLERS, ControllerEntry)
        return next((name for name, entry in entries.items() if entry.active), None)

    def wait_until_steady(self) -> None:
        """Every process runs, every container is served, and none of them by a process that has ended."""
        running = {name for name, node in self.stores.items() if node.running}

        def steady() -> bool:
            held = self.held()
            return (
                self.registered() == running
                and len(held) == self.sizes.containers
                and all(entry.serving and entry.store in running for entry in held.values())
                and self.active() in self.controllers
                and len(self._all(CONTROLLERS, ControllerEntry)) == self.sizes.controllers
            )

        self.wait(steady, "every container is served")

    def wait(self, happened: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not happened():
            for node in (*self.stores.values(), *self.controllers.values()):
                if node.ended:
                    node.start()
                    self.restarts += 1
            if time.monotonic() > end:
                logs = "\n".join(
                    f"--- {node.name}\n{node.tail()}" for node in (*self.stores.values(), *self.controllers.values())
                )
                raise FailoverError(f"not within {PATIENCE_S} s: {what}; containers: {self.owners()}\n{logs}")
            time.sleep(POLL_S)


@contextmanager
def load(cluster: FailoverCluster) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
    """The processes of the load, from the first acknowledgement of each container on."""
    module: Sequence[str] = (
        "tests.cluster.failover_load",
        *(cluster.clients, str(cluster.notes), str(cluster.sizes.containers)),
    )
    if cluster.sizes.relayed:
        module = cluster.relays.command(LOAD, *module)
    command = ("setpriv", "--pdeathsig", "KILL", sys.executable, "-m", *module)
    processes: list[subprocess.Popen[bytes]] = []
    with (cluster.directory / "load.log").open("ab") as log:
        try:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
            probes = cluster.notes / "probes"
            cluster.wait(
                lambda: len(first_after(parse_probes(whole_lines(probes)), 0.0)) == cluster.sizes.containers,
                "the load writes to every container",
            )
            processes.append(subprocess.Popen([*command, "visitor"], stdout=log, stderr=log))
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.wait()


def judged(cluster: FailoverCluster) -> dict[str, Any]:
    """Counts of what was acknowledged and read, and the anomalies."""
    notes = cluster.notes
    acked = [line.strip() for line in whole_lines(notes / "events")]
    probes = parse_probes(whole_lines(notes / "probes"))
    placed = parse_placed(whole_lines(notes / "places"))
    counters = Counters.parse(whole_lines(notes / "counters"))
    probed = [f"probe-{probe.container} {probe.number}" for probe in probes]
    with penstock.connect(cluster.clients) as store:
        found = [event.data.decode() for event in store.stream(failover_load.EVENTS).reader(until_tail=True)]
        places: dict[int, dict[int, str]] = {}
        for container in range(cluster.sizes.containers):
            reader = store.stream(failover_load.probe_stream(container, cluster.sizes.containers)).reader(
                until_tail=True
            )
            places[container] = {event.offset: event.data.decode() for event in reader}
        table = store.table(failover_load.COUNTERS)
        entries = {name: table.get(name) for name in failover_load.COUNTER_NAMES}
    values = {name: int(entry.value) for name, entry in entries.items() if entry is not None}
    seen = [event for of_container in places.values() for event in of_container.values()]
    of_probes = [event for event in seen if not is_visit(event)]
    anomalies = Counter(event_anomalies(acked, found)) + Counter(event_anomalies(probed, of_probes))
    visits = [one.event for one in placed if is_visit(one.event)]
    anomalies += Counter(event_anomalies(visits, [event for event in seen if is_visit(event)]) | {"gaps": 0})
    return {
        "acked": len(acked) + len(probes) + len(visits),
        "read": len(found) + len(seen),
        "visits": len(visits),
        "increments": counters.acked.total(),
        "unknown_increments": counters.unknown.total(),
        "anomalies": {
            **anomalies,
            **place_anomalies(placed, places),
            "stale_reads": counters.stale,
            "wrong_counters": counters.wrong(values),
            "failed_clients": [line.strip() for line in whole_lines(notes / "failures")],
        },
    }


def is_visit(event: str) -> bool:
    """Whether the visitor wrote the event."""
    return event.startswith(failover_load.VISITOR)
