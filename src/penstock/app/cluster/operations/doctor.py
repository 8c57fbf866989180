"""``penstock cluster doctor``: gathers the facts about a cluster and its engines, and reports what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from penstock.app.cluster.address import ClusterAddress
from penstock.app.cluster.init import MARKS
from penstock.app.cluster.operations.status import ClusterState, cluster_state, open_cluster
from penstock.app.tier2 import shared_objects
from penstock.codec.store.cluster_nodes import CONTROLLERS, SECRET, STORES, ClusterConfig, SecretDigests
from penstock.core.cluster import diagnosis
from penstock.core.cluster.diagnosis import Finding, LedgerFacts
from penstock.core.cluster.explanations import alike, container_names
from penstock.core.cluster.levels import LEVEL
from penstock.model.errors import (
    ClusterNotFoundError,
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.model.ledgers import COPIES_MIN, LedgerSpec
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.cluster.coordination import Coordination
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.storage.chunks.claim import MARK, parse_mark
from penstock.storage.cluster.namespace import SESSIONS
from penstock.storage.cluster.nodes import open_nodes
from penstock.storage.ledgers.beginnings import LOG_LABEL
from penstock.storage.ledgers.inspection import LedgerInspection, open_inspection
from penstock.storage.ledgers.metadata import LedgerNodes
from penstock.storage.ledgers.takeover import APPLICATION

_AT_ONCE = 32
"""Ledgers whose metadata are read at the same time."""
_RETRY = "check the network, and run this again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """``cluster``: its id; None: unknown. ``findings``: what is wrong first."""

    cluster: str | None
    findings: Sequence[Finding]

    @property
    def is_wrong(self) -> bool:
        return any(one.wrong for one in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """How the doctor reaches what lies outside the nodes of a cluster. ``created_ms``: when a node was created, by
    ZooKeeper's clock, in milliseconds since the Unix epoch; its path is below the cluster's root. ``inspect``: a look
    into ledgers. ``objects``: of tier 2, raises InvalidArgumentError."""

    created_ms: Callable[[str], Awaitable[int]]
    inspect: Callable[[ClusterConfig], AbstractAsyncContextManager[LedgerInspection]]
    objects: Callable[[ClusterConfig], Objects]


async def diagnose(address: ClusterAddress, *, insecure: bool, clock: Clock, rng: Rng, offload: Offload) -> Diagnosis:
    """Check the cluster at this address. Changes nothing but the registration of its own session.

    ``insecure``: tier 2 may be reached over plain HTTP. Raises InvalidArgumentError: the address is none.
    """
    try:
        async with open_nodes(address.hosts) as nodes:

            @asynccontextmanager
            async def inspect(config: ClusterConfig) -> AsyncIterator[LedgerInspection]:
                async with open_inspection(nodes, root=config.ledgers) as inspection:
                    yield inspection

            def objects(config: ClusterConfig) -> Objects:
                return shared_objects(config.tier2, config.endpoint, insecure=insecure, offload=offload)

            async def created_ms(path: str) -> int:
                return await nodes.created_ms(f"{address.root}/{path}")

            around = Surroundings(created_ms=created_ms, inspect=inspect, objects=objects)
            began_ms = clock.now_ms()
            async with open_cluster(address, rng=rng, offload=offload) as coordination:
                own_ms = began_ms - await created_ms(f"{SESSIONS}/{coordination.session().id}")
                return await examine(coordination, around, clock=clock, own_ahead_ms=own_ms)
    except UnavailableError as error:
        problem = f"it does not answer at {address.hosts}: {error}"
        action = "start ZooKeeper, or correct the address in --cluster"
    except ClusterNotFoundError as error:
        problem = str(error)
        action = (
            "correct the root in --cluster, or create the cluster with `penstock cluster init`. If ZooKeeper's data were"
            " lost: `penstock cluster doctor --rebuild --tier2 PLACE`"
        )
    return Diagnosis(cluster=None, findings=[Finding(subject="ZooKeeper", problem=problem, action=action)])


async def examine(
    coordination: Coordination, around: Surroundings, *, clock: Clock, own_ahead_ms: int = 0
) -> Diagnosis:
    """Check the cluster of an open session. ``own_ahead_ms``: how far our wall clock is ahead of ZooKeeper's. Raises
    UnavailableError: the coordinator does not answer."""
    now_ms = clock.now_ms()
    try:
        state = await cluster_state(coordination, now_ms=now_ms, inspect=around.inspect)
    except NotFoundError:
        finding = Finding(
            subject="ZooKeeper",
            problem="the creation of the cluster was not finished",
            action="repeat `penstock cluster init`. If the cluster was in use before, ZooKeeper's data were lost:"
            " `penstock cluster doctor --rebuild --tier2 PLACE`",
        )
        return Diagnosis(cluster=None, findings=[finding])
    findings = _state_findings(state)
    findings += await _process_findings(state, around, own_ahead_ms)
    if state.config is not None:
        findings += await _tier_findings(state, state.config, around)
        findings += await _ledger_findings(state, state.config, around, now_ms)
    findings.sort(key=lambda one: not one.wrong)
    return Diagnosis(cluster=None if state.config is None else state.config.cluster, findings=findings)


def _state_findings(state: ClusterState) -> list[Finding]:
    """What the status shows."""
    found = [
        Finding(subject=f"node {one.node}", problem=f"it is damaged: {one.reason}", action=one.action)
        for one in state.damaged
    ]
    found += _controller_findings(state)
    for store in state.stores:
        found += [
            Finding(
                subject=f"store {store.name}",
                problem=f"it is drained and cannot be emptied: {reason} ({container_names(numbers)})",
                action="start another store, or undrain one",
                wrong=False,
            )
            for reason, numbers in store.blocked.items()
        ]
        if store.flapping:
            problem = "it was lost three times in ten minutes, so it gets no containers for now"
            found.append(Finding(subject=f"store {store.name}", problem=problem, action="see its log for the cause"))
    return found + _container_findings(state)


def _container_findings(state: ClusterState) -> list[Finding]:
    action = "see the log of the store; it keeps trying"
    action = action if any(store.entry for store in state.stores) else "start a store"
    found = [
        Finding(subject=container_names(numbers), problem=f"not served: {reason}", action=action)
        for reason, numbers in alike(
            (one.number, one.unserved) for one in state.containers if one.unserved is not None and one.disabled is None
        )
    ]
    found += [
        Finding(
            subject=container_names(numbers),
            problem=f"could not be opened by {store}: {reason}; another store serves what it could not open",
            action=f"remove the cause, and restart {store}; otherwise it is asked again after ten minutes or more, or once"
            " the controller reaches it",
            wrong=False,
        )
        for (store, reason), numbers in alike(
            (one.number, (bad.store, bad.reason))
            for one in state.containers
            if one.unserved is None
            for bad in one.failed
        )
    ]
    for one in state.containers:
        subject = f"container {one.number}"
        if one.disabled is not None:
            action = f"after the repair: `penstock cluster enable {one.number}`"
            found.append(Finding(subject=subject, problem=f"disabled: {one.disabled}", action=action, wrong=False))
        if one.log is not None:
            found += [
                Finding(
                    subject=subject,
                    problem=f"ledger {thin.ledger} lacks a copy: {', '.join(thin.absent)} not available",
                    action="start the bookie again, or replace it (docs/how-to/bookkeeper.md)",
                )
                for thin in one.log.thin
            ]
            found += [
                Finding(subject=subject, problem=f"its log cannot be read: {problem}", action="start the bookies again")
                for problem in one.log.problems
            ]
    return found


def _controller_findings(state: ClusterState) -> list[Finding]:
    outdated = [
        Finding(
            subject=f"controller {one.controller}",
            problem=f"it accepts no users and tokens: {one.outdated}",
            action="check whether its machine reaches tier 2",
        )
        for one in state.controllers
        if one.outdated
    ]
    return outdated + _leader_findings(state)


def _leader_findings(state: ClusterState) -> list[Finding]:
    if any(one.active for one in state.controllers):
        return []
    problem = "none is active" if state.controllers else "none is up"
    action = "start a controller. If one is up and does not become active, its log shows why"
    name = None if state.leader is None else state.leader.controller
    if any(one.controller == name for one in state.controllers):
        problem = f"none is active: {name} was elected, and waits until it reaches all containers"
        action = f"if this lasts, see the log of {name} for the containers that it does not reach, and why"
    return [Finding(subject="controllers", problem=problem, action=action)]


async def _process_findings(state: ClusterState, around: Surroundings, own_ahead_ms: int) -> list[Finding]:
    """Versions, addresses and clocks of the registered processes."""
    levels: dict[str, int] = {}
    secrets: dict[str, str] = {}
    addresses: dict[str, str] = {}
    at_ms: dict[str, tuple[str, int]] = {}
    for store in state.stores:
        if store.entry is not None:
            name = f"store {store.name}"
            levels[name] = store.entry.level
            secrets[name] = store.entry.secret
            addresses |= {f"{name} (clients)": store.entry.clients, f"{name} (controllers)": store.entry.links}
            at_ms[name] = (f"{STORES}/{store.name}", store.entry.at_ms)
    for one in state.controllers:
        name = f"controller {one.controller}"
        levels[name] = one.level
        secrets[name] = one.secret
        addresses |= {f"{name} (gRPC)": one.grpc, f"{name} (HTTP)": one.http}
        at_ms[name] = (f"{CONTROLLERS}/{one.controller}", one.at_ms)
    ahead_ms = {"this machine": own_ahead_ms}
    for name, (path, shown_ms) in at_ms.items():
        if shown_ms:
            try:
                ahead_ms[name] = shown_ms - await around.created_ms(path)
            except NotFoundError:
                continue  # it has just ended
    return [
        *diagnosis.level_findings(state.level, levels, own=LEVEL),
        *([] if any(one.node == SECRET for one in state.damaged) else secret_findings(state.secret, secrets)),
        *diagnosis.address_findings(addresses),
        *diagnosis.clock_findings(ahead_ms),
    ]


def secret_findings(valid: SecretDigests | None, secrets: Mapping[str, str]) -> list[Finding]:
    """Whether the secret is recorded, and whether its change is finished. ``secrets``: the digest that each process uses."""
    if valid is None:
        problem = "the cluster records no digest of it, so a process with another secret is not refused when it starts"
        action = "run `penstock cluster secret record` on a machine whose processes run"
        return [Finding(subject="secret", problem=problem, action=action, wrong=False)]
    if len(valid.digests) < 2:
        return []
    behind = [name for name, digest in secrets.items() if digest != valid.digests[-1]]
    problem = "two secrets are valid, because it is being changed"
    action = "run `penstock cluster secret finish`"
    if behind:
        problem += f"; these processes use the earlier one: {', '.join(behind)}"
        action = f"restart them with the new file, then {action}"
    return [Finding(subject="secret", problem=problem, action=action, wrong=False)]


async def _tier_findings(state: ClusterState, config: ClusterConfig, around: Surroundings) -> list[Finding]:
    try:
        objects = around.objects(config)
        marks = [name.rpartition("/")[2] for name in await objects.list(MARKS)]
        parts, unreadable = {}, []
        for one in state.containers:
            if one.record is not None and one.record.epoch:
                expected = one.record.tier or (one.record.uid if one.record.catalogues else None)
                try:
                    parts[one.number] = expected, await _mark(objects, one.number)
                except (CorruptDataError, VersionTooNewError) as error:
                    unreadable.append(_mark_finding(one.number, error))
    except (UnavailableError, InvalidArgumentError, OSError) as error:
        return [
            Finding(
                subject="tier 2",
                problem=f"it cannot be read from here: {error}",
                action="check its address, the mount and the credentials",
            )
        ]
    return [*diagnosis.tier_findings(config.cluster, marks, parts), *unreadable]


def _mark_finding(number: int, error: PenstockError) -> Finding:
    action = f"put the object container-{number}/{MARK} of tier 2 back from a copy"
    return Finding(
        subject=f"container {number}",
        problem=f"the mark of its part of tier 2 cannot be read: {error}",
        action="use the newer version" if isinstance(error, VersionTooNewError) else action,
    )


async def _mark(objects: Objects, number: int) -> str | None:
    """The mark of the part of tier 2 that belongs to a container."""
    name = f"container-{number}/{MARK}"
    try:
        return parse_mark(await objects.read(name, 0, await objects.size(name)))
    except FileNotFoundError:
        return None


async def _ledger_findings(
    state: ClusterState, config: ClusterConfig, around: Surroundings, now_ms: int
) -> list[Finding]:
    records = [one.record for one in state.containers if one.record is not None]
    named = {listed.ledger for record in records for listed in record.ledgers}
    spec = LedgerSpec()
    try:
        async with around.inspect(config) as inspection:
            instance = await inspection.nodes.check_layout()
            registered = await inspection.bookies()
            silent = await inspection.silent([one.name for one in registered.writable])
            ledgers = await ledger_facts(inspection.nodes, besides=named)
    except PenstockError as error:
        return [Finding(subject="BookKeeper", problem=str(error), action=_RETRY)]
    return [
        *diagnosis.bookkeeper_findings(config.bookkeeper, instance),
        *diagnosis.bookie_findings(
            registered.writable, registered.read_only, silent, copies=spec.copies, least=COPIES_MIN
        ),
        *diagnosis.orphan_findings(ledgers, named=named, logs={record.uid for record in records}, now_ms=now_ms),
    ]


async def ledger_facts(nodes: LedgerNodes, *, besides: set[int]) -> Sequence[LedgerFacts]:
    """All ledgers of BookKeeper except those, sorted. One that is deleted meanwhile, or whose metadata cannot be read, is
    left out. Raises UnavailableError."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(ledger: int) -> LedgerFacts | None:
        async with slots:
            try:
                metadata, _ = await nodes.read(ledger)
            except (NotFoundError, CorruptDataError):
                return None
        label = dict(metadata.custom).get(LOG_LABEL)
        log = None if label is None else label.decode(errors="replace")
        is_ours = APPLICATION in metadata.custom
        return LedgerFacts(ledger=ledger, log=log, created_ms=metadata.created_ms, is_ours=is_ours)

    wanted = [ledger for ledger in await nodes.ledgers() if ledger not in besides]
    return [found for found in await asyncio.gather(*map(one, wanted)) if found is not None]
