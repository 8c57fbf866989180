"""``penstock store``: one process of a cluster that owns containers, and serves them to clients and to the controller.

Source: docs/design/0065-cluster.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock.app.access.refusal_audit import RefusalAudit
from penstock.app.cluster.access.keys import ClusterVerifier
from penstock.app.cluster.access.secret import SecretInForce, check_secret, read_cluster_secret
from penstock.app.cluster.address import ClusterAddress
from penstock.app.cluster.holding import UnitHost
from penstock.app.cluster.init import check_incarnation, check_tier, read_config
from penstock.app.cluster.levels import LevelInForce, check_level
from penstock.app.cluster.node import NodeLimits, StoreNode
from penstock.app.cluster.passing import TablePassing, open_passing
from penstock.app.cluster.unit import UnitsShared, open_unit, share_units
from penstock.app.cluster.unit_links import UnitLinks
from penstock.app.cluster.units_router import UnitsRouter
from penstock.app.descriptors import connections_allowed
from penstock.app.memory_watch import MemoryWatch
from penstock.app.metrics.process import ProcessMetrics
from penstock.app.segments import StoreSource, wire_limits
from penstock.app.serving import run_server
from penstock.app.settings import WILDCARDS, StandaloneSettings, is_loopback
from penstock.app.telemetry import Counters
from penstock.app.tier2 import shared_objects
from penstock.codec.store.cluster_nodes import INCARNATIONS, ClusterConfig, StoreEntry
from penstock.core.cluster.levels import LEVEL
from penstock.model.errors import CorruptDataError, InvalidArgumentError, UnavailableError
from penstock.model.values.dataclass import dataclass
from penstock.net.dial.security import DialSecurity
from penstock.net.security import Security
from penstock.net.tls.certificates import NO_ALPN
from penstock.net.tls.client import ClientTls
from penstock.net.tls.server_tls import ServerTls
from penstock.net.wire.wire_server import InCluster, WireServer
from penstock.net.workers.tcp_link import LinkListener
from penstock.ports.clock import Clock
from penstock.ports.cluster.coordination import Coordination, check_path
from penstock.ports.offload import Offload
from penstock.storage.cluster.nodes import open_nodes
from penstock.storage.cluster.zookeeper import open_zookeeper
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.machine.calls import replace_file
from penstock.storage.machine.clock import RealClock, boot_seconds
from penstock.storage.machine.data_directory import DataDirectory, is_complete
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng

log = logging.getLogger(__name__)

IDENTITY: Final = "cluster-store.json"
"""File in the data directory: which cluster and which store it is for."""
_LIMITS: Final = NodeLimits()
_STOP_S: Final = _LIMITS.holding.flush_s + _LIMITS.holding.close_s + _LIMITS.leave_s
"""How long closing all containers may take. Each one gives up by itself before that."""

Ready = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreProcessSettings:
    """``name``: of this store in the cluster. ``serving``: its directory and memory budget, its host and the port for
    clients, and their protection. ``links_port``: for controllers, with the same TLS. Port 0 selects a free one.
    ``links_tls``: of connections to other stores; None: they are plain."""

    address: ClusterAddress
    name: str
    secret_file: Path
    serving: StandaloneSettings
    links_port: int
    links_tls: ClientTls | None = None

    def __post_init__(self) -> None:
        check_path(self.name)
        if not self.name or "/" in self.name:
            raise InvalidArgumentError("the name of a store must not be empty or contain /", given=self.name)
        if not 0 <= self.links_port < 1 << 16:
            raise InvalidArgumentError("port must be 0 to 65535", links_port=self.links_port)
        if self.links_port and self.links_port == self.serving.store_port:
            raise InvalidArgumentError("clients and controllers need different ports", links_port=self.links_port)
        if self.serving.host in WILDCARDS and self.serving.advertised_host is None:
            raise InvalidArgumentError(
                "this --host is not an address that clients and controllers can connect to: give --advertise too",
                host=self.serving.host,
            )

    @property
    def data(self) -> Path:
        return self.serving.store.data


def run_store(settings: StoreProcessSettings, *, ready: Ready) -> None:
    """Run until SIGINT or SIGTERM; then close all containers. Calls ``ready`` once the store is registered.

    Raises NotFoundError (no such cluster or secret), InvalidArgumentError (another process has the name; a directory of
    another cluster or store), VersionTooNewError (the cluster was upgraded to formats that this version cannot write; also
    raised later), WrongClusterError (BookKeeper, tier 2 or the secret is not the cluster's, or ZooKeeper's
    data were created again; the last two are also raised later), DirectoryInUseError, AddressInUseError,
    CoordinatorUnavailableError, NotConnectedError.
    """

    async def serve(stop: asyncio.Event, opened: asyncio.Event) -> None:
        async with open_store(settings) as (node, entry, facts):
            running = asyncio.ensure_future(node.run(entry))
            registered = asyncio.ensure_future(node.registered.wait())
            stopping = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait({running, registered}, return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    opened.set()
                    ready(facts)
                    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    node.stop()
                    await asyncio.wait({running}, timeout=_STOP_S)
            finally:
                for task in (running, registered, stopping):
                    task.cancel()
                await asyncio.wait({running, registered, stopping})
            if running.cancelled():
                log.warning("store ends before all containers are closed", extra={"waited_s": _STOP_S})
            else:
                running.result()

    run_server(serve, settings.serving, name="store")


def bind_directory(data: Path, config: ClusterConfig, name: str) -> None:
    """Bind the locked directory to this store of this cluster. Raises InvalidArgumentError: it belongs to another
    store; CorruptDataError, OSError."""
    file = data / IDENTITY
    try:
        found = json.loads(file.read_bytes())
        cluster, store = str(found["cluster"]), str(found["store"])
    except FileNotFoundError:
        if is_complete(data):
            raise InvalidArgumentError(
                "the data directory belongs to a store outside any cluster; use a new directory", data=str(data)
            ) from None
        replace_file(file, json.dumps({"cluster": config.cluster, "store": name}).encode() + b"\n")
        return
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(
            "the data directory does not show which store it belongs to; it is only a cache, so you can delete it",
            file=str(file),
        ) from error
    if (cluster, store) != (config.cluster, name):
        raise InvalidArgumentError(
            "the data directory belongs to another store; it is only a cache, so you can delete it",
            data=str(data),
            cluster=cluster,
            store=store,
            expected_cluster=config.cluster,
            expected_store=name,
        )


@asynccontextmanager
async def open_store(
    settings: StoreProcessSettings,
) -> AsyncIterator[tuple[StoreNode, StoreEntry, Mapping[str, Any]]]:
    """Open the ports of a store, lock its directory, and connect to the engines of its cluster. Returns the node, which is
    not in the cluster before it runs, its entry, and what to print. Raises as ``run_store``."""
    known = read_cluster_secret(settings.secret_file)
    clock, rng, telemetry = RealClock(), RealRng(), Counters()
    hosts, root = settings.address.hosts, settings.address.root
    async with AsyncExitStack() as stack:
        # Sessions have threads of their own, so that slow files of a container cannot delay them.
        sessions = await stack.enter_async_context(ThreadOffload(threads=2))
        session = partial(open_zookeeper, hosts, root, boot_clock=boot_seconds, rng=rng, offload=sessions)
        async with session(cluster=None) as first:
            config = await read_config(first)
            in_force = LevelInForce(await check_level(first))
            secrets = await check_secret(first, config.cluster, settings.secret_file, known, sessions)
        directory = DataDirectory.open(settings.data)
        stack.callback(directory.close)
        bind_directory(settings.data, config, settings.name)
        directory.mark_complete()
        offload = await stack.enter_async_context(ThreadOffload())
        await _check_tier(settings, config, offload)
        guard = None if config.incarnation is None else f"{root}/{INCARNATIONS}/{config.incarnation}"
        nodes = await stack.enter_async_context(open_nodes(hosts, guard=guard))
        ledgers = await stack.enter_async_context(
            open_ledgers(nodes, root=config.ledgers, clock=clock, rng=rng, instance=config.bookkeeper)
        )
        shared = share_units(
            settings.address,
            config,
            replace(settings.serving.store, tier2_insecure=settings.serving.insecure),
            nodes=nodes,
            ledgers=ledgers,
            source=StoreSource(clock=clock, rng=rng, offload=offload, telemetry=telemetry),
            in_force=in_force,
        )

        @asynccontextmanager
        async def open_session() -> AsyncIterator[Coordination]:
            async with session(cluster=config.cluster) as opened:
                await check_incarnation(opened, config)
                yield opened

        router = UnitsRouter(config.containers)
        host = UnitHost(
            open=lambda number: open_unit(number, shared),
            router=router,
            links=UnitLinks(router.container_of, _metrics(settings, telemetry, clock)),
        )
        node = StoreNode(
            host,
            open_session=open_session,
            boot_clock=boot_seconds,
            limits=_LIMITS,
            clock=clock,
            in_force=in_force,
            secrets=secrets,
        )
        entry = await _listen(stack, settings, shared, host, node, secrets=secrets)
        yield node, entry, _facts(settings, config, entry)


async def _check_tier(settings: StoreProcessSettings, config: ClusterConfig, offload: Offload) -> None:
    """Raises WrongClusterError: tier 2 belongs to another cluster. If it does not answer, the store starts, and
    containers wait."""
    objects = shared_objects(config.tier2, config.endpoint, insecure=settings.serving.insecure, offload=offload)
    try:
        await check_tier(objects, config)
    except (UnavailableError, OSError) as error:
        log.warning("tier 2 does not answer", extra={"tier2": config.tier2, "reason": str(error)})


async def _listen(
    stack: AsyncExitStack,
    settings: StoreProcessSettings,
    shared: UnitsShared,
    host: UnitHost,
    node: StoreNode,
    *,
    secrets: SecretInForce,
) -> StoreEntry:
    """Open the ports until the stack is closed. Nothing is answered before the node runs. Raises AddressInUseError."""
    serving, source = settings.serving, shared.source
    dialling = DialSecurity(tls=settings.links_tls, now=asyncio.get_running_loop().time)
    dialling.context()
    security = await _securing(stack, settings, shared, host.links, secrets)
    in_cluster = InCluster(
        answer_check=node.answer_check,
        pass_on=await stack.enter_async_context(_passing(host.router, node, dialling, source)),
    )
    wire = await stack.enter_async_context(
        WireServer(
            host.router,
            host=serving.host,
            port=serving.store_port,
            rng=source.rng,
            telemetry=source.telemetry,
            limits=wire_limits(serving.store, connections=connections_allowed()),
            guard=host.links.guard,
            security=security,
            in_cluster=in_cluster,
        )
    )
    listener = await stack.enter_async_context(
        LinkListener(
            serving.host,
            settings.links_port,
            cluster=shared.config.cluster,
            secret=secrets.current,
            earlier_secret=lambda: secrets.earlier,
            rng=source.rng,
            accept=host.links.accept,
            answer_check=node.answer_check,
            tls=None if security.tls is None else partial(security.tls.context, NO_ALPN),
        )
    )
    await stack.enter_async_context(_memory_watch(shared, serving, wire))
    return StoreEntry(
        store=settings.name,
        clients=_place(serving.advertised, wire.port),
        links=_place(serving.advertised, listener.port),
        pid=os.getpid(),
        level=LEVEL,
        secret=secrets.digest,
    )


def _memory_watch(shared: UnitsShared, serving: StandaloneSettings, wire: WireServer) -> MemoryWatch:
    return MemoryWatch(
        shared.memory,
        budget_bytes=serving.store.memory_bytes,
        drop=wire.give_back_memory,
        report=wire.memory_is_short,
        telemetry=shared.source.telemetry,
    )


def _passing(
    router: UnitsRouter, node: StoreNode, dialling: DialSecurity, source: StoreSource
) -> AbstractAsyncContextManager[TablePassing]:
    return open_passing(
        router.is_here,
        lambda segment: node.client_address(router.container_of(segment)),
        security=dialling,
        rng=source.rng,
        telemetry=source.telemetry,
    )


async def _securing(
    stack: AsyncExitStack,
    settings: StoreProcessSettings,
    shared: UnitsShared,
    links: UnitLinks,
    secrets: SecretInForce,
) -> Security:
    """The protection of the port for clients. It verifies the tokens that controllers sign; refusals go to the controller."""
    serving, source = settings.serving, shared.source
    tls = verifier = refused = None
    if serving.tls is not None:
        tls = await stack.enter_async_context(ServerTls(serving.tls, clock=source.clock, telemetry=source.telemetry))
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, tls.reload)
    if serving.access is not None:
        verifier = ClusterVerifier(secrets, shared.config.cluster, source.clock)
        refused = await stack.enter_async_context(RefusalAudit(links.record_refusals, source.clock))
    if serving.tls is None and not is_loopback(serving.host):
        log.warning(
            "links between controllers and stores are not encrypted without --tls-cert: their network must be private",
            extra={"host": serving.host, "missing": list(serving.unprotected)},
        )
    return Security(tls=tls, verifier=verifier, refused=refused)


def _metrics(settings: StoreProcessSettings, telemetry: Counters, clock: Clock) -> Callable[[], Any]:
    """Metrics of the process. Which functions of a container do not work is reported by the container."""
    own = ProcessMetrics(telemetry, clock, not_ready=dict)
    budget_bytes = settings.serving.store.memory_bytes
    return lambda: own.snapshot(budget_bytes=budget_bytes, store=None).to_lists()


def _facts(settings: StoreProcessSettings, config: ClusterConfig, entry: StoreEntry) -> Mapping[str, Any]:
    """What the process prints about itself."""
    return {
        "serving": True,
        "role": "store",
        "store": entry.clients,
        "links": entry.links,
        "name": entry.store,
        "cluster": config.cluster,
        "containers": config.containers,
        "data": str(settings.data),
    }


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
