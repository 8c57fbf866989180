"""``penstock cluster init``: create all nodes of a cluster, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from penstock.app.cluster.access.secret import (
    check_secret,
    ensure_cluster_secret,
    read_cluster_secret,
    secret_digest,
)
from penstock.app.cluster.address import ClusterAddress
from penstock.app.tier2 import shared_objects
from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    CONFIG,
    CONTAINERS,
    CONTROLLERS,
    FAILED,
    FEATURES,
    HOLDERS,
    INCARNATIONS,
    REQUESTS,
    SECRET,
    STORES,
    TERM,
    Assignment,
    ClusterConfig,
    Features,
    Requests,
    SecretDigests,
    Term,
    decode_node,
    encode_node,
)
from penstock.codec.store.container_record import ContainerRecord, encode_record
from penstock.core.cluster.levels import LEVEL
from penstock.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NodeNotFoundError,
    NotFoundError,
    WrongClusterError,
)
from penstock.model.ledgers import Bookie
from penstock.model.urls import url_parts
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.cluster.coordination import Change, Coordination, Create
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.storage.chunks.claim import tier_mark
from penstock.storage.cluster.namespace import create_namespace, find_namespace
from penstock.storage.cluster.nodes import open_nodes
from penstock.storage.cluster.zookeeper import open_zookeeper
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.machine.clock import boot_seconds

CONTAINERS_MAX: Final = 64
"""Each has a log of its own: an open ledger on three bookies, and a node that its owner changes."""
MARKS: Final = "clusters"
"""Directory of tier 2 with one object for the cluster that uses it, named by its id."""
_TRIALS: Final = "trials"
"""Directory of tier 2 with an object of each `cluster init` that is checking whether it can write there."""
_MARK_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What the operator wants: see ``ClusterConfig``. ``insecure``: tier 2 may be reached over plain HTTP."""

    tier2: str
    endpoint: str | None = None
    containers: int = 16
    ledgers: str = "/ledgers"
    insecure: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.containers <= CONTAINERS_MAX:
            raise InvalidArgumentError(
                "number of containers is out of range", given=self.containers, most=CONTAINERS_MAX
            )
        if not self.ledgers.startswith("/"):
            raise InvalidArgumentError("BookKeeper's root in ZooKeeper must begin with /", given=self.ledgers)

    def config(self, cluster: str, *, bookkeeper: str | None = None, incarnation: str | None = None) -> ClusterConfig:
        """The configuration of the cluster with this id; see ``ClusterConfig``. A directory is named by its absolute path."""
        return ClusterConfig(
            cluster=cluster,
            containers=self.containers,
            ledgers=self.ledgers.rstrip("/"),
            tier2=self.tier2.rstrip("/") if url_parts(self.tier2).scheme else str(Path(self.tier2).absolute()),
            endpoint=self.endpoint,
            bookkeeper=bookkeeper,
            incarnation=incarnation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialised:
    """``created``: the nodes are new; before, a cluster with the same settings was there. ``bookies``: those that can be
    written to now. ``secret_created``: the file with the secret is new."""

    config: ClusterConfig
    created: bool
    bookies: Sequence[Bookie]
    secret_created: bool


async def init_cluster(
    address: ClusterAddress, plan: ClusterPlan, secret_file: Path, *, clock: Clock, rng: Rng, offload: Offload
) -> Initialised:
    """Create the cluster at the address, and its secret if there is no file. After an interruption, call it again with the
    same settings. What it refuses, it refuses before its first change.

    Raises InvalidArgumentError (the cluster there has other settings, or tier 2 is used by another store or cluster),
    WrongClusterError (the root belongs to another program, or the secret is not the cluster's), NotFoundError (no BookKeeper
    is there; the cluster exists, and the file with its secret is missing), CoordinatorUnavailableError, UnavailableError
    (tier 2 does not answer), UnknownOutcomeError.
    """
    objects = shared_objects(plan.tier2, plan.endpoint, insecure=plan.insecure, offload=offload)
    async with (
        open_nodes(address.hosts) as nodes,
        open_ledgers(nodes, root=plan.ledgers.rstrip("/"), clock=clock, rng=rng) as ledgers,
    ):
        bookies = await ledgers.bookies()
        bookkeeper = await ledgers.nodes.check_layout()
    session = partial(open_zookeeper, address.hosts, address.root, boot_clock=boot_seconds, rng=rng, offload=offload)
    found = await find_namespace(address.hosts, address.root, offload=offload)
    config = plan.config(found or str(rng.uuid()), bookkeeper=bookkeeper, incarnation=str(rng.uuid()))
    is_there = False
    if found is not None:
        async with session(cluster=found) as coordination:
            is_there = await _exists(coordination, config)
            if is_there:
                await _check_file(coordination, config, secret_file, offload)
    is_new = False
    if not is_there:
        await check_tier_is_free(objects, config)
        is_new = await offload.run(lambda: ensure_cluster_secret(secret_file, rng))
        try:
            is_there = not await _create(
                address, config, objects, secret_file, session=session, rng=rng, offload=offload
            )
        except (InvalidArgumentError, WrongClusterError):
            if is_new:  # refused, so no cluster has this secret
                await offload.run(secret_file.unlink)
            raise
    return Initialised(config=config, created=not is_there, bookies=bookies, secret_created=is_new)


async def _create(
    address: ClusterAddress,
    config: ClusterConfig,
    objects: Objects,
    secret_file: Path,
    *,
    session: Callable[..., AbstractAsyncContextManager[Coordination]],
    rng: Rng,
    offload: Offload,
) -> bool:
    """Create the root and the nodes. False: another command was faster, with the same secret. Raises as ``init_cluster``."""
    secret = await offload.run(lambda: read_cluster_secret(secret_file))
    digest = await offload.run(lambda: secret_digest(secret.current, config.cluster))
    await create_namespace(address.hosts, address.root, cluster=config.cluster, offload=offload)
    async with session(cluster=config.cluster) as coordination:
        created = await create_nodes(coordination, config, objects, rng, secret=digest)
        if not created:
            await _check_file(coordination, config, secret_file, offload)
        return created


async def _check_file(coordination: Coordination, config: ClusterConfig, secret_file: Path, offload: Offload) -> None:
    """Raises NotFoundError (the cluster exists, and its secret is not here), WrongClusterError (another secret)."""
    try:
        secret = await offload.run(lambda: read_cluster_secret(secret_file))
    except NotFoundError as error:
        raise NotFoundError(
            "a cluster exists at this root, and the file with its secret is not here: copy it from the machine that created"
            " the cluster",
            path=str(secret_file),
        ) from error
    await check_secret(coordination, config.cluster, secret_file, secret, offload)


async def create_nodes(
    coordination: Coordination, config: ClusterConfig, objects: Objects, rng: Rng, *, secret: str | None = None
) -> bool:
    """Mark tier 2, and create all nodes in one transaction. False: they were there with the same settings. ``secret``: its
    digest; None: none is recorded.

    Raises InvalidArgumentError as ``init_cluster``; nothing was changed then, except tier 2, which may have the mark.
    """
    if await _exists(coordination, config):
        return False
    await mark_tier(objects, config)
    records = [ContainerRecord(uid=str(rng.uuid())) for _ in range(config.containers)]
    changes = list(creation(config, records))
    if secret is not None:
        changes.append(Create(SECRET, encode_node(SecretDigests(digests=(secret,)))))
    try:
        await coordination.multi(changes)
    except AlreadyExistsError:
        if await _exists(coordination, config):
            return False
        raise
    return True


def creation(config: ClusterConfig, records: Sequence[ContainerRecord], *, term: int = 0) -> Sequence[Change]:
    """The changes that create all nodes of a cluster. ``records``: of its containers, by number. ``term``: of the last
    election."""
    changes: list[Change] = [
        Create(CONFIG, encode_node(config)),
        Create(FEATURES, encode_node(Features(level=LEVEL))),
        Create(REQUESTS, encode_node(Requests())),
        Create(ASSIGNMENT, encode_node(Assignment())),
        Create(TERM, encode_node(Term(term=term, controller=""))),
        *(Create(path, b"") for path in (STORES, CONTROLLERS, HOLDERS, FAILED, CONTAINERS, INCARNATIONS)),
    ]
    if config.incarnation is not None:
        changes.append(Create(f"{INCARNATIONS}/{config.incarnation}", b""))
    changes += [Create(f"{CONTAINERS}/{number}", encode_record(record)) for number, record in enumerate(records)]
    return changes


async def check_incarnation(coordination: Coordination, config: ClusterConfig) -> None:
    """Raises WrongClusterError: the nodes of the cluster were created again since ``config`` was read."""
    if config.incarnation is None:
        return
    try:
        await coordination.read(f"{INCARNATIONS}/{config.incarnation}")
    except NodeNotFoundError as error:
        raise WrongClusterError(
            "the records of this cluster were created again after this process started: restart it",
            cluster=config.cluster,
            expected=config.incarnation,
        ) from error


async def check_tier(objects: Objects, config: ClusterConfig) -> None:
    """Raises WrongClusterError: tier 2 is not that of the cluster. Raises what ``objects`` raises."""
    names = await objects.list(MARKS)
    if f"{MARKS}/{config.cluster}" not in names:
        raise WrongClusterError(
            "tier 2 lacks the mark of this cluster: check that the bucket or the mounted directory is the right one",
            tier2=config.tier2,
            expected=config.cluster,
            found=", ".join(name.rpartition("/")[2] for name in names) or None,
        )


async def _exists(coordination: Coordination, wanted: ClusterConfig) -> bool:
    """Whether the nodes are there. Raises InvalidArgumentError if their settings differ."""
    try:
        node = await coordination.read(CONFIG)
    except NodeNotFoundError:
        return False
    found = decode_node(ClusterConfig, node.data)
    if found.bookkeeper is None or wanted.bookkeeper is None:
        wanted = replace(wanted, bookkeeper=found.bookkeeper)
    pairs = {
        name: (getattr(found, name), getattr(wanted, name))
        for name in ("containers", "ledgers", "tier2", "endpoint", "cluster", "bookkeeper")
    }
    different = [f"{name} is {there}, not {given}" for name, (there, given) in pairs.items() if there != given]
    if different:
        raise InvalidArgumentError(
            "a cluster with other settings exists at this root, and they cannot be changed",
            different="; ".join(different),
        )
    return True


async def read_config(coordination: Coordination) -> ClusterConfig:
    """The configuration of the cluster. Raises NotFoundError: its creation was not finished."""
    try:
        node = await coordination.read(CONFIG)
    except NodeNotFoundError as error:
        raise NotFoundError(
            "the creation of the cluster was not finished: repeat `penstock cluster init`. If the cluster was in use before,"
            " see `penstock cluster doctor`"
        ) from error
    return decode_node(ClusterConfig, node.data)


async def check_tier_is_free(objects: Objects, config: ClusterConfig) -> None:
    """Prove that tier 2 can be written, and that no other cluster or store uses it. Leaves nothing there. Raises
    InvalidArgumentError, UnavailableError, OSError."""
    await _refuse_others(objects, config, f"{MARKS}/{config.cluster}")
    trial = f"{_TRIALS}/{config.incarnation or config.cluster}"
    await objects.put(trial, b"")
    await objects.delete(trial)


async def mark_tier(objects: Objects, config: ClusterConfig) -> None:
    """Prove that tier 2 can be written, and mark it as used by the cluster. Of two clusters that do this at the same time, at
    least one sees the other's mark. Raises InvalidArgumentError, UnavailableError, OSError."""
    own = f"{MARKS}/{config.cluster}"
    await _refuse_others(objects, config, own)
    fields = {"format": _MARK_FORMAT, "cluster": config.cluster, "containers": config.containers}
    await objects.put(own, json.dumps(fields).encode() + b"\n")
    try:
        await _refuse_others(objects, config, own)
    except InvalidArgumentError:
        await objects.delete(own)
        raise


async def _refuse_others(objects: Objects, config: ClusterConfig, own: str) -> None:
    others = [name for name in await objects.list(MARKS) if name != own]
    if others:
        raise InvalidArgumentError(
            "tier 2 belongs to another cluster; use an empty prefix or directory. If it is this cluster's, and ZooKeeper's"
            " data were lost: `penstock cluster doctor --rebuild --tier2 PLACE`",
            tier2=config.tier2,
            object=others[0],
        )
    store = await tier_mark(objects)
    workers = False
    with suppress(FileNotFoundError):
        workers = await objects.size("worker-0/STORE") > 0
    if store is not None or workers or await objects.list("chunks"):
        raise InvalidArgumentError(
            "tier 2 belongs to another store; use an empty prefix or directory", tier2=config.tier2, store=store
        )
