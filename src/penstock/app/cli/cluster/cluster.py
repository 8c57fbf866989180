"""``penstock cluster``: create a cluster, show it, move and disable its containers, finish an upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.cluster import secret
from penstock.app.cli.cluster.doctor import doctor
from penstock.app.cli.cluster.options import BookkeeperRootOption, ClusterOption, SecretFileOption
from penstock.app.cli.cluster.session import run, with_cluster
from penstock.app.cli.cluster.state_words import print_damaged, print_status, status_json
from penstock.app.cli.common.options import REASON, TIER2, WAIT, DryRunOption, EndpointOption, InsecureOption, YesOption
from penstock.app.cli.common.output import ProgressLine, print_facts, print_json, say
from penstock.app.cli.common.target import JsonOption
from penstock.core.units import counted

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.app.cluster.init import Initialised
    from penstock.ports.cluster.coordination import Coordination

app = typer.Typer(no_args_is_help=True, help="A store on several machines: create, inspect, move, repair, upgrade.")

app.command()(doctor)
app.add_typer(secret.app, name="secret")

ContainerArgument = Annotated[int, typer.Argument(metavar="CONTAINER", help="Number of the container.")]
StoreArgument = Annotated[str, typer.Argument(metavar="STORE", help="Name of the store.")]


@app.command()
def init(
    cluster: ClusterOption,
    tier2: Annotated[
        str, typer.Option("--tier2", metavar="PLACE", help=f"{TIER2} All machines must reach it.", show_default=False)
    ],
    secret_file: SecretFileOption,
    s3_endpoint: EndpointOption = None,
    containers: Annotated[
        int,
        typer.Option(
            "--containers",
            metavar="N",
            min=1,
            max=64,
            help="Number of parts that move between machines. It cannot be changed later.",
        ),
    ] = 16,
    bookkeeper_root: BookkeeperRootOption = "/ledgers",
    insecure: InsecureOption = False,
    json: JsonOption = False,
) -> None:
    """Create a cluster in ZooKeeper, and its secret if the file does not exist. Running it again changes nothing.

    Run it once, on one machine. A directory as --tier2 must exist. The number of containers, tier 2 and the root of
    BookKeeper cannot be changed later.

    \b
    penstock cluster init --cluster zk://zk1:2181/penstock/shop --tier2 s3://bucket/shop --secret-file cluster.secret
    """
    from penstock.app.cluster.address import parse_cluster_address
    from penstock.app.cluster.init import ClusterPlan, init_cluster
    from penstock.storage.machine.clock import RealClock
    from penstock.storage.machine.offload import ThreadOffload
    from penstock.storage.machine.rng import RealRng

    address = parse_cluster_address(cluster)
    plan = ClusterPlan(
        tier2=tier2, endpoint=s3_endpoint, containers=containers, ledgers=bookkeeper_root, insecure=insecure
    )

    async def work() -> Initialised:
        async with ThreadOffload(threads=2) as offload:
            return await init_cluster(address, plan, secret_file, clock=RealClock(), rng=RealRng(), offload=offload)

    _print_created(run(work), secret_file, as_json=json)


def _print_created(found: Initialised, secret_file: Path, *, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "cluster": found.config.cluster,
        "created": found.created,
        "containers": found.config.containers,
        "tier2": found.config.tier2,
        "bookies": len(found.bookies),
        "secret_file": str(secret_file),
        "secret_created": found.secret_created,
    }
    print_facts(facts, as_json=as_json)
    if not as_json:
        few = "" if len(found.bookies) >= 3 else " Each container needs three bookies, or at least two."
        print(f"next: copy {secret_file} to all machines; run penstock store and penstock controller there.{few}")


@app.command()
def status(cluster: ClusterOption, json: JsonOption = False) -> None:
    """Show stores, controllers and containers: who owns them, what is not in tier 2 yet, and why something waits.

    Reads ZooKeeper, and the logs of containers from bookies. Changes nothing.

    \b
    penstock cluster status --cluster zk://zk1:2181/penstock/shop
    """
    from penstock.app.cluster.address import parse_cluster_address
    from penstock.app.cluster.operations.status import cluster_state, inspect_at
    from penstock.storage.machine.clock import RealClock

    now_ms, inspect = RealClock().now_ms(), inspect_at(parse_cluster_address(cluster))
    found = with_cluster(cluster, lambda session: cluster_state(session, now_ms=now_ms, inspect=inspect))
    if json:
        print_json(status_json(found, now_ms=now_ms))
    else:
        print_status(found, now_ms=now_ms)


@app.command()
def drain(
    store: StoreArgument,
    cluster: ClusterOption,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help=f"{WAIT} The store then holds no container.")] = True,
    json: JsonOption = False,
) -> None:
    """Move all containers away from a store, one every second. It can then be stopped without a pause for clients.

    The store stays drained, even after a restart, until `penstock cluster undrain`.

    \b
    penstock cluster drain store-2 --cluster zk://zk1:2181/penstock/shop
    """
    import sys

    from penstock.app.cluster.operations.requests import request_drained, until_drained
    from penstock.storage.machine.clock import RealClock

    with ProgressLine(quiet=json) as line:

        def show(left: int) -> None:
            line.show(f"{counted(left, 'container')} left on {store}")

        def explain(reason: str) -> None:
            line.show("")
            print(f"{store} cannot be emptied now: {reason}", file=sys.stderr)

        async def work(session: Coordination) -> None:
            await request_drained(session, store, drained=True)
            if wait:
                await until_drained(session, store, show, clock=RealClock(), blocked=explain)

        with_cluster(cluster, work)
    say(f"{store} is empty" if wait else f"{store} is being emptied", as_json=json, store=store, empty=wait)


@app.command()
def undrain(store: StoreArgument, cluster: ClusterOption, json: JsonOption = False) -> None:
    """Let a drained store get containers again.

    \b
    penstock cluster undrain store-2 --cluster zk://zk1:2181/penstock/shop
    """
    from penstock.app.cluster.operations.requests import request_drained

    changed = with_cluster(cluster, lambda session: request_drained(session, store, drained=False))
    say(f"{store} gets containers again" if changed else f"{store} was not drained", as_json=json, store=store)


@app.command()
def move(
    container: ContainerArgument,
    store: StoreArgument,
    cluster: ClusterOption,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help=f"{WAIT} The store then serves it.")] = True,
    json: JsonOption = False,
) -> None:
    """Move a container to a store, and pin it there until `penstock cluster unpin`. Prints how long no store served it.

    If the store is lost, another one serves the container until it is back.

    \b
    penstock cluster move 7 store-2 --cluster zk://zk1:2181/penstock/shop
    """
    from penstock.app.cluster.operations.requests import request_pinned, until_moved

    with ProgressLine(quiet=json) as line:

        async def work(session: Coordination) -> float | None:
            await request_pinned(session, container, store)
            return await until_moved(session, container, store, line.show) if wait else None

        unserved_s = with_cluster(cluster, work)
    text = f"container {container} will move to {store}"
    if unserved_s is not None:
        text = f"container {container} is served by {store}; no store served it for {unserved_s:.1f} s"
    say(text, as_json=json, container=container, store=store, unserved_s=unserved_s)


@app.command()
def unpin(container: ContainerArgument, cluster: ClusterOption, json: JsonOption = False) -> None:
    """Remove the pin of a container: any store may own it again.

    \b
    penstock cluster unpin 7 --cluster zk://zk1:2181/penstock/shop
    """
    from penstock.app.cluster.operations.requests import request_pinned

    changed = with_cluster(cluster, lambda session: request_pinned(session, container, None))
    text = f"container {container} is no longer pinned" if changed else f"container {container} was not pinned"
    say(text, as_json=json, container=container)


@app.command()
def disable(
    container: ContainerArgument,
    cluster: ClusterOption,
    reason: Annotated[
        str,
        typer.Option("--reason", metavar="TEXT", help=f"{REASON} Operators and clients see it.", show_default=False),
    ],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help=f"{WAIT} No store then has it open.")] = True,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Close a container, and keep all stores from opening it, so that it can be repaired. Nothing is deleted.

    Its segments cannot be written or read until `penstock cluster enable`. Calls to it fail with the reason.

    \b
    penstock cluster disable 7 --reason "repair of its record" --cluster zk://zk1:2181/penstock/shop
    """
    from penstock.app.cli.common.loss import Loss, confirm
    from penstock.app.cluster.operations.requests import request_disabled, until_closed

    facts = {
        "clients": "cannot write or read its segments; calls fail with the reason",
        "reason": reason,
        "undo": f"`penstock cluster enable {container}`",
    }
    loss = Loss(action=f"disable container {container}", facts=facts, fields={"container": container, "reason": reason})
    confirm(loss, yes=yes, as_json=json)
    with ProgressLine(quiet=json) as line:

        async def work(session: Coordination) -> None:
            await request_disabled(session, container, reason)
            if wait:
                await until_closed(session, container, lambda store: line.show(f"{store} closes container {container}"))

        with_cluster(cluster, work)
    text = f"container {container} is disabled" + (
        ", and no store has it open" if wait else "; its store is closing it"
    )
    say(text, as_json=json, container=container, reason=reason, closed=wait)


@app.command()
def enable(container: ContainerArgument, cluster: ClusterOption, json: JsonOption = False) -> None:
    """Let stores open a container again.

    \b
    penstock cluster enable 7 --cluster zk://zk1:2181/penstock/shop
    """
    from penstock.app.cluster.operations.requests import request_disabled

    changed = with_cluster(cluster, lambda session: request_disabled(session, container, None))
    text = f"container {container} may be opened again" if changed else f"container {container} was not disabled"
    say(text, as_json=json, container=container)


@app.command()
def upgrade(
    cluster: ClusterOption,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Finish an upgrade: let all processes write the newest formats that all of them support.

    Run it once all stores and controllers run the new version. Until then, they write the formats of the earlier version, so
    each machine can still return to it. Afterwards, the earlier version refuses to start.

    \b
    penstock cluster upgrade --cluster zk://zk1:2181/penstock/shop
    """
    from dataclasses import asdict

    from penstock.app.cluster.levels import raise_level

    raised = with_cluster(cluster, lambda session: raise_level(session, dry_run=dry_run))
    plan = raised.plan
    if json:
        print_json({**asdict(plan), "damaged": [asdict(one) for one in raised.damaged], "dry_run": dry_run})
        return
    if plan.before is None:
        print(f"the damaged level of formats {'would be' if dry_run else 'was'} written again as {plan.after}")
    elif plan.after == plan.before:
        print(f"formats stay at level {plan.before}")
    else:
        print(f"formats {'would rise' if dry_run else 'rose'} from level {plan.before} to {plan.after}")
    if plan.behind:
        print(f"level {plan.possible} is possible once these run the new version: {', '.join(plan.behind)}")
    print_damaged(raised.damaged)
