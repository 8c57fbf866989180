"""``penstock cluster``: create a cluster, show it, move its containers, finish an upgrade."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from penstock.app.cli.cluster.options import ClusterOption, SecretFileOption
from penstock.app.cli.common.options import TIER2, WAIT, DryRunOption, EndpointOption, InsecureOption
from penstock.app.cli.common.output import ProgressLine, print_facts, print_json, print_rows, say
from penstock.app.cli.common.target import JsonOption
from penstock.core.units import counted

if TYPE_CHECKING:
    from penstock.app.cluster.status import ClusterState, ContainerState
    from penstock.ports.cluster.coordination import Coordination

app = typer.Typer(no_args_is_help=True, help="A store on several machines: create, show, move, upgrade.")
_T = TypeVar("_T")

StoreArgument = Annotated[str, typer.Argument(metavar="STORE", help="Name of the store.")]


@app.command()
def init(
    cluster: Annotated[
        str, typer.Argument(metavar="zk://HOST:PORT/ROOT", help="Where the cluster will be in ZooKeeper.")
    ],
    tier2: Annotated[
        str, typer.Option("--tier2", metavar="PLACE", help=f"{TIER2} All machines must reach it.", show_default=False)
    ],
    secret_file: SecretFileOption,
    s3_endpoint: EndpointOption = None,
    containers: Annotated[
        int,
        typer.Option(
            "--containers", metavar="N", min=1, max=64, help="Parts of the cluster that move between machines; fixed."
        ),
    ] = 16,
    ledgers: Annotated[
        str, typer.Option("--ledgers", metavar="PATH", help="Root of BookKeeper in ZooKeeper.")
    ] = "/ledgers",
    insecure: InsecureOption = False,
    json: JsonOption = False,
) -> None:
    """Create a cluster in ZooKeeper. Generates its secret if there is no file. A repeated call changes nothing.

    Number of containers, tier 2 and BookKeeper cannot be changed later.

    \b
    penstock cluster init zk://zk1:2181,zk2:2181/penstock/shop --tier2 s3://bucket/shop --secret-file cluster.secret
    """
    from penstock.app.cluster.access.secret import ensure_cluster_secret
    from penstock.app.cluster.address import parse_cluster_address
    from penstock.app.cluster.init import ClusterPlan, init_cluster
    from penstock.storage.machine.clock import RealClock
    from penstock.storage.machine.offload import ThreadOffload
    from penstock.storage.machine.rng import RealRng

    address = parse_cluster_address(cluster)
    plan = ClusterPlan(tier2=tier2, endpoint=s3_endpoint, containers=containers, ledgers=ledgers, insecure=insecure)
    rng = RealRng()

    async def work() -> Any:
        async with ThreadOffload(threads=2) as offload:
            return await init_cluster(address, plan, clock=RealClock(), rng=rng, offload=offload)

    is_new = ensure_cluster_secret(secret_file, rng)
    found = _run(work)
    facts: dict[str, Any] = {
        "cluster": found.config.cluster,
        "created": found.created,
        "containers": found.config.containers,
        "tier2": found.config.tier2,
        "bookies": len(found.bookies),
        "secret_file": str(secret_file),
        "secret_created": is_new,
    }
    print_facts(facts, as_json=json)
    if not json:
        few = "" if len(found.bookies) >= 3 else " Containers need three bookies, or at least two."
        print(f"next: copy {secret_file} to all machines; run penstock store and penstock controller there.{few}")


@app.command()
def status(cluster: ClusterOption, json: JsonOption = False) -> None:
    """Show stores, controllers and containers.

    \b
    penstock cluster status --cluster zk://zk1:2181/penstock/shop
    """
    from penstock.app.cluster.status import cluster_state
    from penstock.storage.machine.clock import RealClock

    found = _with_cluster(cluster, lambda session: cluster_state(session, now_ms=RealClock().now_ms()))
    if json:
        print_json(_status_json(found))
    else:
        _print_status(found)


def _print_status(found: ClusterState) -> None:
    unserved = found.unserved
    away = (
        f"{counted(len(unserved), 'container')} of {len(found.containers)} not served: {', '.join(map(str, unserved))}"
    )
    print_facts(
        {
            "cluster": found.config.cluster,
            "tier 2": found.config.tier2,
            "controller": _leader_of(found),
            "containers": away if unserved else f"all {len(found.containers)} are served",
        },
        as_json=False,
    )
    print_rows(
        ("controller", "role", "gRPC", "HTTP"),
        [(one.controller, "active" if one.active else "standby", one.grpc, one.http) for one in found.controllers],
        as_json=False,
    )
    print_rows(
        ("store", "state", "holds", "clients", "links"),
        [
            (
                one.name,
                _state_of(one),
                one.holds,
                "-" if one.entry is None else one.entry.clients,
                "-" if one.entry is None else one.entry.links,
            )
            for one in found.stores
        ],
        as_json=False,
    )
    print_rows(
        ("container", "assigned to", "held by", "state", "epoch", "ledgers"),
        [
            (
                one.number,
                one.assigned or "-",
                "-" if one.held is None else one.held.store,
                _container_state(one),
                one.record.epoch,
                len(one.record.ledgers),
            )
            for one in found.containers
        ],
        as_json=False,
    )


def _container_state(one: ContainerState) -> str:
    words = ["away" if one.held is None else "serving" if one.held.serving else "opening"]
    words += [f"pinned to {one.pinned}"] if one.pinned is not None else []
    words += [f"could not be opened by {failed.store}: {failed.reason}" for failed in one.failed]
    return "; ".join(words)


def _leader_of(found: ClusterState) -> str:
    if found.leader is None:
        return "none is active"
    name = f"{found.leader.controller}, term {found.leader.term}"
    is_active = any(one.active and one.controller == found.leader.controller for one in found.controllers)
    return name if is_active else f"{name}, waits for containers"


def _state_of(store: Any) -> str:
    words = ["up" if store.entry is not None else "away"]
    words += ["drained"] if store.drained else []
    words += ["lost too often, gets no containers"] if store.flaps else []
    return ", ".join(words)


def _status_json(found: ClusterState) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "cluster": asdict(found.config),
        "term": asdict(found.term),
        "leader": None if found.leader is None else asdict(found.leader),
        "controllers": [asdict(one) for one in found.controllers],
        "stores": [asdict(one) for one in found.stores],
        "containers": [
            {
                "container": one.number,
                "assigned": one.assigned,
                "held": None if one.held is None else asdict(one.held),
                "epoch": one.record.epoch,
                "ledgers": len(one.record.ledgers),
                "pinned": one.pinned,
                "failed": [asdict(failed) for failed in one.failed],
            }
            for one in found.containers
        ],
        "unserved": list(found.unserved),
    }


@app.command()
def drain(
    store: StoreArgument,
    cluster: ClusterOption,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help=f"{WAIT} The store then holds no container.")] = True,
    json: JsonOption = False,
) -> None:
    """Move all containers away from a store, one every ten seconds. Then it can be stopped without a pause for clients.

    The store stays drained, also after a restart, until `penstock cluster undrain`.

    \b
    penstock cluster drain store-2 --cluster zk://zk1:2181/penstock/shop
    """
    from penstock.app.cluster.status import until_drained, wish_drained

    with ProgressLine(quiet=json) as line:

        def show(left: int) -> None:
            line.show(f"{counted(left, 'container')} left on {store}")

        async def work(session: Coordination) -> None:
            await wish_drained(session, store, drained=True)
            if wait:
                await until_drained(session, store, show)

        _with_cluster(cluster, work)
    say(f"{store} is empty" if wait else f"{store} is being emptied", as_json=json, store=store, empty=wait)


@app.command()
def undrain(store: StoreArgument, cluster: ClusterOption, json: JsonOption = False) -> None:
    """Let a store have containers again.

    \b
    penstock cluster undrain store-2 --cluster zk://zk1:2181/penstock/shop
    """
    from penstock.app.cluster.status import wish_drained

    changed = _with_cluster(cluster, lambda session: wish_drained(session, store, drained=False))
    say(f"{store} gets containers again" if changed else f"{store} was not drained", as_json=json, store=store)


@app.command()
def move(
    container: Annotated[int, typer.Argument(metavar="CONTAINER", help="Number of the container.")],
    store: Annotated[
        str | None, typer.Argument(metavar="STORE", help="Where it should be.", show_default=False)
    ] = None,
    *,
    cluster: ClusterOption,
    unpin: Annotated[bool, typer.Option("--unpin", help="Let it be anywhere again, instead of a move.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help=f"{WAIT} The store then serves it.")] = True,
    json: JsonOption = False,
) -> None:
    """Move a container to a store, and keep it there until --unpin. Prints for how long no store served it.

    If the store is lost, another one serves the container until it is back.

    \b
    penstock cluster move 7 store-2 --cluster zk://zk1:2181/penstock/shop
    penstock cluster move 7 --unpin --cluster zk://zk1:2181/penstock/shop
    """
    from penstock.app.cluster.status import until_moved, wish_pinned

    if (store is None) != unpin:
        raise typer.BadParameter("give either a store or --unpin")
    with ProgressLine(quiet=json) as line:

        async def work(session: Coordination) -> float | None:
            await wish_pinned(session, container, store)
            return await until_moved(session, container, store, line.show) if wait and store is not None else None

        away_s = _with_cluster(cluster, work)
    if store is None:
        text = f"container {container} may be anywhere again"
    elif away_s is None:
        text = f"container {container} will move to {store}"
    else:
        text = f"container {container} is served by {store}; it was away for {away_s:.1f} s"
    say(text, as_json=json, container=container, store=store, away_s=away_s)


@app.command()
def upgrade(
    cluster: ClusterOption,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Finish an upgrade: let all processes write the newest formats that each of them can write.

    Run it when all stores and controllers run the new version. Until then, they write the formats of the earlier one, so each
    of them can still be replaced by it. Afterwards, the earlier version refuses to start.

    \b
    penstock cluster upgrade --cluster zk://zk1:2181/penstock/shop
    """
    from dataclasses import asdict

    from penstock.app.cluster.levels import raise_level

    plan = _with_cluster(cluster, lambda session: raise_level(session, dry_run=dry_run))
    if json:
        print_json({**asdict(plan), "dry_run": dry_run})
        return
    if plan.after == plan.before:
        print(f"formats stay at level {plan.before}")
    else:
        print(f"formats {'would rise' if dry_run else 'rose'} from level {plan.before} to {plan.after}")
    if plan.behind:
        print(f"level {plan.possible} is possible once these run the new version: {', '.join(plan.behind)}")


def _with_cluster(cluster: str, work: Callable[[Coordination], Awaitable[_T]]) -> _T:
    from penstock.app.cluster.address import parse_cluster_address
    from penstock.app.cluster.status import open_cluster
    from penstock.storage.machine.offload import ThreadOffload
    from penstock.storage.machine.rng import RealRng

    address = parse_cluster_address(cluster)

    async def main() -> _T:
        async with (
            ThreadOffload(threads=2) as offload,
            open_cluster(address, rng=RealRng(), offload=offload) as session,
        ):
            return await work(session)

    return _run(main)


def _run(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    import asyncio  # only here, so that --help is quick

    return asyncio.run(work())
