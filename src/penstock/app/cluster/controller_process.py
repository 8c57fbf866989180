"""``penstock controller``: a standby until it is elected, then the active controller of a cluster.

Source: docs/design/0065-cluster.md, "One active controller".
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from penstock.app.cluster.access.keys import (
    AUDIT_KEYS,
    USERS,
    derived_keys,
    has_erasure_key,
    settle_erasure_key,
    settle_token_key,
    shared_erasure_key,
    token_key,
)
from penstock.app.cluster.access.secret import SecretInForce, check_secret, obey_secret, read_cluster_secret
from penstock.app.cluster.access.shared_files import SharedFile, SharedFiles
from penstock.app.cluster.access.signing_keys import SharedSigningKeys
from penstock.app.cluster.address import ClusterAddress
from penstock.app.cluster.election import leadership_over, leading
from penstock.app.cluster.init import read_config
from penstock.app.cluster.keeper import keep_assignment
from penstock.app.cluster.levels import LevelInForce, check_level, obey_level
from penstock.app.cluster.lines import ContainerLines, Dial, open_lines
from penstock.app.cluster.operations.after_rebuild import begin_after_rebuild, end_after_rebuild
from penstock.app.cluster.operations.store_metrics import StoreMetrics
from penstock.app.embedded import Runtime
from penstock.app.replicated.log_place import NO_ERASURE
from penstock.app.serving import Parts, open_control, open_ports, run_server, securing
from penstock.app.settings import WILDCARDS, StandaloneSettings
from penstock.app.telemetry import Counters
from penstock.app.tier2 import shared_objects
from penstock.codec.store.cluster_nodes import CONTROLLERS, ClusterConfig, ControllerEntry, Term, encode_node
from penstock.controller.keys import TABLE
from penstock.core.cluster.levels import LEVEL
from penstock.core.segments.placement import container_of
from penstock.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NodeChangedError,
    NodeNotFoundError,
    SessionEndedError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.model.values.dataclass import dataclass
from penstock.net.tls.certificates import load_tls
from penstock.net.tls.client import ClientTls, FreshTls
from penstock.net.workers.link import Handler, WorkerLink
from penstock.net.workers.tcp_link import Greeting, dial_container
from penstock.ports.cluster.coordination import Coordination, check_path
from penstock.ports.control.layout import Endpoint
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.storage.access.token_list import merge_tokens, parse_tokens, tokens_path
from penstock.storage.access.users_file import parse_users, users_path
from penstock.storage.cluster.zookeeper import open_zookeeper
from penstock.storage.machine.clock import RealClock, boot_seconds
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.storage.machine.signing_keys import FileSigningKeys

log = logging.getLogger(__name__)

_WATCH_S: Final = 0.2
_SHOW_S: Final = 1.0
_NAME_S: Final = 30.0
"""The name of a killed controller may stay registered for this long: one session, usually 4 s, and with ZooKeeper's
defaults at most 20 ticks of 2 s."""
_SERVED_S: Final = 30.0
"""How long the first start waits for all containers. Streams of the others cannot be reached until they are served."""
_REACHED_S: Final = 10.0
"""How long an elected controller then tries to reach a store that serves its table. One with another secret, or behind a
broken network, must not keep the others from being elected."""
_LOST_S: Final = 30.0
"""The same for the active controller. It is longer, because calls wait for this long, and a store that hangs is noticed
only after 15 s."""

Ready = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerProcessSettings:
    """``name``: of this controller in the cluster. ``serving``: its ports and their protection, budgets and directory of
    keys. ``links_tls``: of the links to stores; None: they are plain."""

    address: ClusterAddress
    name: str
    secret_file: Path
    serving: StandaloneSettings
    links_tls: ClientTls | None = None

    def __post_init__(self) -> None:
        check_path(self.name)
        if not self.name or "/" in self.name:
            raise InvalidArgumentError("the name of a controller must not be empty or contain /", given=self.name)
        if self.serving.host in WILDCARDS and self.serving.advertised_host is None:
            raise InvalidArgumentError(
                "clients on other machines need an address of this one: give --advertise", host=self.serving.host
            )


def run_controller(
    settings: ControllerProcessSettings, *, ready: Ready, show_warning: Callable[[str], None] = log.debug
) -> None:
    """Run until SIGINT or SIGTERM. Calls ``ready`` when the process is a standby, and again when it is active.

    Raises SessionEndedError when it can no longer be sure to be the only active controller; start it again then. Raises
    what ``open_zookeeper``, ``read_config``, ``open_control`` and ``open_ports`` raise.
    """

    async def serve(stop: asyncio.Event, opened: asyncio.Event) -> None:
        async with open_member(settings) as member:
            opened.set()
            await member.run(stop, ready, show_warning)

    run_server(serve, settings.serving, name="controller")


@asynccontextmanager
async def open_member(settings: ControllerProcessSettings) -> AsyncIterator[ClusterMember]:
    """Open a session, and register this controller as a standby. The directory is locked meanwhile."""
    rng = RealRng()
    known = read_cluster_secret(settings.secret_file)
    if settings.serving.tls is not None:
        # A standby opens no port. Check the certificate now: otherwise a bad one would show only after the election.
        load_tls(settings.serving.tls, now_ms=RealClock().now_ms())
        # Files are read at the election. Without a handler, the signal would end a standby.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: None)
    links_tls = None
    if settings.links_tls is not None:
        links_tls = FreshTls(settings.links_tls, asyncio.get_running_loop().time)
        links_tls.context()
    async with AsyncExitStack() as stack:
        offload = await stack.enter_async_context(ThreadOffload(threads=2))
        directory = DataDirectory.open(settings.serving.store.data)
        stack.callback(directory.close)
        coordination = await stack.enter_async_context(
            open_zookeeper(
                settings.address.hosts,
                settings.address.root,
                cluster=None,
                boot_clock=boot_seconds,
                rng=rng,
                offload=offload,
            )
        )
        config = await read_config(coordination)
        in_force = LevelInForce(await check_level(coordination))
        secrets = await check_secret(coordination, config.cluster, settings.secret_file, known, offload)
        objects = shared_objects(config.tier2, config.endpoint, insecure=settings.serving.insecure, offload=offload)
        await _settle_keys(settings, config, objects, secrets, offload)
        shared = None
        if settings.serving.access is not None:
            shared = _sharing_access(settings, coordination, config, objects, secrets=secrets, rng=rng, offload=offload)
            await shared.catch_up()
        signing = SharedSigningKeys(
            files=FileSigningKeys(settings.serving.store.data),
            objects=objects,
            cluster=config.cluster,
            keys=derived_keys(secrets.valid, config.cluster, AUDIT_KEYS),
            rng=rng,
        )
        directory.mark_complete()
        member = ClusterMember(
            settings,
            coordination,
            config,
            secrets=secrets,
            rng=rng,
            signing=signing,
            shared=shared,
            links_tls=links_tls,
            in_force=in_force,
        )
        await member.register()
        yield member


async def _settle_keys(
    settings: ControllerProcessSettings,
    config: ClusterConfig,
    objects: Objects,
    secrets: SecretInForce,
    offload: Offload,
) -> None:
    """Write the keys that all controllers have into the directory."""
    data, cluster = settings.serving.store.data, config.cluster
    if not await offload.run(lambda: has_erasure_key(data)):
        erasure = await shared_erasure_key(objects, secrets.valid, cluster)
        await offload.run(lambda: settle_erasure_key(data, erasure))
    if settings.serving.access is not None:
        current, *others = (token_key(one, cluster) for one in secrets.valid)
        await offload.run(lambda: settle_token_key(data, current, others[0] if others else None))


def _sharing_access(
    settings: ControllerProcessSettings,
    coordination: Coordination,
    config: ClusterConfig,
    objects: Objects,
    *,
    secrets: SecretInForce,
    rng: Rng,
    offload: Offload,
) -> SharedFiles:
    """Users and tokens as all controllers have them."""
    data, access = settings.serving.store.data, settings.serving.access
    own_users = access is not None and access.users is not None
    return SharedFiles(
        coordination=coordination,
        objects=objects,
        data=data,
        files=(
            SharedFile(name=tokens_path(data).name, check=parse_tokens, merge=merge_tokens),
            *(() if own_users else (SharedFile(name=users_path(data).name, check=parse_users),)),
        ),
        cluster=config.cluster,
        keys=derived_keys(secrets.valid, config.cluster, USERS),
        rng=rng,
        offload=offload,
    )


class ClusterMember:
    """A controller process in a session with the coordinator. Arguments are borrowed."""

    def __init__(
        self,
        settings: ControllerProcessSettings,
        coordination: Coordination,
        config: ClusterConfig,
        *,
        secrets: SecretInForce,
        rng: Rng,
        signing: SharedSigningKeys,
        shared: SharedFiles | None = None,
        links_tls: FreshTls | None = None,
        in_force: LevelInForce | None = None,
    ) -> None:
        """``signing``: the keys of the audit log. ``shared``: users and tokens; None: callers need no identity.
        ``links_tls``: None: links are plain. ``in_force``: the level of the cluster."""
        self._shared = shared
        self._signing = signing
        self._links_tls = links_tls
        self._in_force = in_force or LevelInForce()
        self._settings = settings
        self._coordination = coordination
        self._config = config
        self._secrets = secrets
        self._rng = rng
        self._entry = ControllerEntry(
            controller=settings.name,
            grpc=_place(settings.serving.advertised, settings.serving.controller_port),
            http=_place(settings.serving.advertised, settings.serving.http_port),
            active=False,
            pid=os.getpid(),
            level=LEVEL,
            secret=secrets.digest,
        )
        self._is_active = False
        self._showing = asyncio.Lock()

    @property
    def _path(self) -> str:
        return f"{CONTROLLERS}/{self._settings.name}"

    async def register(self) -> None:
        """Register this controller. Waits while an earlier process has the name, which may have been killed. Raises
        AlreadyExistsError: it lives."""
        async with asyncio.timeout(_NAME_S) as limit, aclosing(self._coordination.notices(self._path)) as notices:
            try:
                async for _ in notices:
                    try:
                        self._entry = replace(self._entry, at_ms=RealClock().now_ms())
                        await self._coordination.register(self._path, encode_node(self._entry))
                        return
                    except AlreadyExistsError:
                        log.info("name is still registered; waiting", extra={"controller": self._settings.name})
            except asyncio.CancelledError:
                if limit.expired():
                    raise AlreadyExistsError(
                        "another controller of this cluster has this name: give each controller its own --name",
                        controller=self._settings.name,
                    ) from None
                raise

    async def run(self, stop: asyncio.Event, ready: Ready, show_warning: Callable[[str], None]) -> None:
        """Wait to be elected, then serve. Returns after ``stop``. Raises as ``run_controller``."""
        ready(self._facts("standby"))
        keeping = asyncio.ensure_future(
            keep_assignment(self._coordination, containers=self._config.containers, clock=RealClock())
        )
        lead_task = asyncio.ensure_future(self._lead(stop, ready, show_warning))
        others = [
            asyncio.ensure_future(obey_level(self._coordination, self._in_force)),
            asyncio.ensure_future(obey_secret(self._coordination, self._secrets)),
        ]
        if self._shared is not None:
            others.append(asyncio.ensure_future(self._shared.follow()))
            others.append(asyncio.ensure_future(self._show_outdated()))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({keeping, lead_task, stopping, *others}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done() and self._is_active and not keeping.done():
                await asyncio.wait({lead_task})
        finally:
            for task in (stopping, keeping, lead_task, *others):
                task.cancel()
            await asyncio.gather(stopping, keeping, lead_task, *others, return_exceptions=True)
        for task in (lead_task, keeping, *others):
            if task.cancelled():
                continue
            try:
                task.result()
            except SessionEndedError as error:
                raise leadership_over(self._coordination) from error

    async def _show(self, entry: ControllerEntry) -> None:
        """Replace the registration of this controller."""
        async with self._showing:
            node = await self._coordination.read(self._path)
            self._entry = replace(entry, outdated=self._outdated() or "")
            await self._coordination.set(self._path, encode_node(self._entry), node.version)

    def _outdated(self) -> str | None:
        """Why this controller accepts no users and tokens now; None: it does."""
        return None if self._shared is None else self._shared.freshness.outdated()

    async def _show_outdated(self) -> NoReturn:
        """Let operators see whether this controller accepts users. Raises SessionEndedError."""
        while True:
            await asyncio.sleep(_SHOW_S)
            if (self._outdated() or "") != self._entry.outdated:
                log.error("users and tokens", extra={"outdated": self._outdated()})
                with suppress(UnavailableError, NodeChangedError, NodeNotFoundError):  # it is repeated
                    await self._show(self._entry)

    async def _lead(self, stop: asyncio.Event, ready: Ready, show_warning: Callable[[str], None]) -> None:
        async with leading(self._coordination, self._settings.name, boot_clock=boot_seconds) as term:
            log.info("elected", extra={"controller": self._settings.name, "term": term.term})
            async with self._active(term, show_warning) as (lines, entry):
                self._is_active = True
                await self._show(entry)
                ready(self._facts("active", entry, term))
                table = container_of(TABLE, self._config.containers)
                while (failure := lines.failure or lines.unreachable(table, reach_s=_LOST_S)) is None:
                    try:
                        await asyncio.wait_for(stop.wait(), _WATCH_S)
                    except TimeoutError:
                        continue
                    return
                raise failure

    @asynccontextmanager
    async def _active(
        self, term: Term, show_warning: Callable[[str], None]
    ) -> AsyncIterator[tuple[ContainerLines, ControllerEntry]]:
        """The controller, over links to all containers, and its ports."""
        serving, clock, telemetry = self._settings.serving, RealClock(), Counters()
        containers = self._config.containers
        async with AsyncExitStack() as stack:
            lines = await stack.enter_async_context(
                open_lines(self._coordination, self._dial(term), containers=containers)
            )
            await lines.until_served(container_of(TABLE, containers), patience_s=_SERVED_S, reach_s=_REACHED_S)
            await self._signing.catch_up()
            restored = await begin_after_rebuild(self._coordination, lines)
            controller = await stack.enter_async_context(
                open_control(
                    serving,
                    lines.segments,
                    clock=clock,
                    rng=self._rng,
                    endpoint_of=lines.endpoint_of,
                    telemetry=telemetry,
                    erasure_refused=lambda: None if self._in_force.seals_ledgers else NO_ERASURE,
                    earlier_removals_passed=lines.earlier_removals_passed,
                    signing=self._signing,
                )
            )
            if restored is not None:
                await end_after_rebuild(self._coordination, controller, restored)
            lines.serve(controller.client_removal, controller.record_refusals)
            await lines.segments.lift_unknown_limits()
            if self._shared is not None:
                await self._shared.catch_up()  # learn what was revoked last
            security = await stack.enter_async_context(securing(serving, telemetry, controller, self._outdated))
            if security.tls is not None:
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, security.tls.reload)
            runtime = Runtime(
                segments=lines.segments,
                controller=controller,
                clock=clock,
                rng=self._rng,
                telemetry=telemetry,
                failure=lambda: lines.failure,
                not_ready=lines.not_ready,
            )
            ports = await stack.enter_async_context(
                open_ports(serving, runtime, security, _parts(lines, self._outdated), show_warning)
            )
            yield lines, replace(self._entry, grpc=_text(ports.grpc), http=_text(ports.http), active=True)

    def _dial(self, term: Term) -> Dial:
        async def dial(container: int, address: str, handlers: Mapping[str, Handler]) -> WorkerLink:
            greeting = Greeting(self._config.cluster, container, term.term, self._settings.name)
            tls = None if self._links_tls is None else self._links_tls.context()
            current, *others = self._secrets.valid
            dialled = partial(dial_container, address, greeting, rng=self._rng, handlers=handlers, tls=tls)
            try:
                return await dialled(secret=current)
            except UnauthenticatedError:
                for one in others:  # the store may not have the new secret yet
                    with suppress(UnauthenticatedError):
                        return await dialled(secret=one)
                raise

        return dial

    def _facts(self, role: str, entry: ControllerEntry | None = None, term: Term | None = None) -> Mapping[str, Any]:
        """What the process prints about itself."""
        entry = entry or self._entry
        return {
            "serving": entry.active,
            "role": role,
            "controller": entry.grpc,
            "http": entry.http,
            "name": entry.controller,
            "cluster": self._config.cluster,
            "term": None if term is None else term.term,
            "data": str(self._settings.serving.store.data),
        }


def _parts(lines: ContainerLines, outdated: Callable[[], str | None]) -> Parts:
    """A container that is away makes the controller not ready for some functions. It stays live: a restart would not help."""
    return Parts(
        failure=lambda: None if lines.failure is None else str(lines.failure),
        away=lines.away,
        outdated=outdated,
        metrics=StoreMetrics(lines.lines),
    )


def _text(endpoint: Endpoint) -> str:
    return _place(endpoint.host, endpoint.port)


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
