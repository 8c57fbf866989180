"""``penstock cluster doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.cli.cluster.options import BookkeeperRootOption, ClusterOption
from penstock.app.cli.cluster.session import run
from penstock.app.cli.common.options import REASON, TIER2, EndpointOption, InsecureOption, YesOption
from penstock.app.cli.common.output import print_json
from penstock.app.cli.common.target import JsonOption
from penstock.app.cli.upkeep.scrub import DAMAGE_STATUS
from penstock.core.units import counted, format_size

if TYPE_CHECKING:
    from penstock.app.cluster.operations.doctor import Diagnosis
    from penstock.app.cluster.operations.rebuild import RebuildReport, RebuiltContainer


def doctor(
    cluster: ClusterOption,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Restore lost records in ZooKeeper from tier 2 and ledgers.")
    ] = False,
    tier2: Annotated[
        str | None, typer.Option("--tier2", metavar="PLACE", help=f"{TIER2} For --rebuild.", show_default=False)
    ] = None,
    s3_endpoint: EndpointOption = None,
    bookkeeper_root: BookkeeperRootOption = "/ledgers",
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Rebuild even if data are lost. By default, --rebuild then changes nothing."
        ),
    ] = False,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help=f"{REASON} ZooKeeper keeps it.", show_default=False)
    ] = "",
    insecure: InsecureOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Find out what is wrong with a cluster, its ZooKeeper, its bookies and its tier 2. Changes nothing without --rebuild.

    Each finding is one line that ends with what to do. Exit status 7: something is wrong.

    --rebuild restores records that ZooKeeper has lost. Stop all stores and controllers first.

    \b
    penstock cluster doctor --cluster zk://zk1:2181/penstock/shop
    penstock cluster doctor --cluster zk://zk1:2181/penstock/shop --rebuild --tier2 s3://bucket/shop
    """
    if rebuild != (tier2 is not None):
        raise typer.BadParameter("--rebuild and --tier2 belong together")
    if tier2 is not None:
        _rebuild(
            cluster,
            tier2,
            s3_endpoint,
            bookkeeper_root,
            reason,
            insecure=insecure,
            accept=accept_loss,
            yes=yes,
            json=json,
        )
        return
    found = _diagnose(cluster, insecure)
    if json:
        print_json({"cluster": found.cluster, "wrong": found.is_wrong, "findings": list(map(asdict, found.findings))})
    else:
        for one in found.findings:
            print(f"{'wrong' if one.wrong else 'note'}: {one}")
        if not found.is_wrong:
            print("nothing is wrong")
    if found.is_wrong:
        raise typer.Exit(DAMAGE_STATUS)


def _diagnose(cluster: str, insecure: bool) -> Diagnosis:
    from penstock.app.cluster.address import parse_cluster_address
    from penstock.app.cluster.operations.doctor import diagnose
    from penstock.storage.machine.clock import RealClock
    from penstock.storage.machine.offload import ThreadOffload
    from penstock.storage.machine.rng import RealRng

    address = parse_cluster_address(cluster)

    async def work() -> Diagnosis:
        async with ThreadOffload(threads=2) as offload:
            return await diagnose(address, insecure=insecure, clock=RealClock(), rng=RealRng(), offload=offload)

    return run(work)


def _rebuild(
    cluster: str,
    tier2: str,
    endpoint: str | None,
    ledgers: str,
    reason: str,
    *,
    insecure: bool,
    accept: bool,
    yes: bool,
    json: bool,
) -> None:
    from penstock.app.cli.common.loss import Loss, confirm
    from penstock.app.cluster.address import parse_cluster_address
    from penstock.app.cluster.operations.rebuild_command import RebuildPlan, rebuild_cluster
    from penstock.storage.machine.clock import RealClock
    from penstock.storage.machine.offload import ThreadOffload
    from penstock.storage.machine.rng import RealRng

    address = parse_cluster_address(cluster)
    facts = {
        "before": "stop all stores and controllers on all machines, also those that ZooKeeper does not show",
        "earlier owners": "are fenced: they acknowledge nothing more",
        "loss": "is accepted: the rebuild continues without logs that cannot be found"
        if accept
        else "is reported, and then nothing is changed",
    }
    action = f"rebuild the records of the cluster at {address}"
    confirm(Loss(action=action, facts=facts, fields={"accept_loss": accept}), yes=yes, as_json=json)
    plan = RebuildPlan(
        tier2=tier2, endpoint=endpoint, ledgers=ledgers, insecure=insecure, accept_loss=accept, reason=reason
    )

    async def work() -> RebuildReport:
        async with ThreadOffload(threads=4) as offload:
            return await rebuild_cluster(address, plan, clock=RealClock(), rng=RealRng(), offload=offload)

    report = run(work)
    if json:
        print_json({**asdict(report), "complete": report.is_complete})
    else:
        print("\n".join(_lines(report)))
    if not report.is_complete and not report.applied:
        raise typer.Exit(DAMAGE_STATUS)


def _lines(report: RebuildReport) -> Sequence[str]:
    lines = [_line(one) for one in report.containers]
    if not report.applied and report.is_complete:
        return ["nothing is missing, so nothing was changed"]
    if not report.applied:
        return [*lines, "nothing was changed. To continue without what is lost: --accept-loss"]
    return [*lines, f"cluster {report.cluster} has its records again; start its stores and controllers"]


def _line(one: RebuiltContainer) -> str:
    name = f"container {one.container}"
    if one.state == "new":
        return f"{name}: it was never used"
    as_of = "" if one.as_of_ms is None else f", whose newest part dates from {_time(one.as_of_ms)}"
    known = f"{name}: recovered up to position {one.upto} of its log, from tier 2"
    if one.state == "complete":
        text = f"{known}{as_of}, and {format_size(one.log_bytes)} of log; nothing is missing"
    elif one.state == "cut":
        text = f"{known}{as_of}, and {format_size(one.log_bytes)} of log. The rest of its log is missing"
    else:
        text = f"{known} alone{as_of}. Its log is lost, with all that was acknowledged after that; how much is unknown"
    if one.unreachable_bytes:
        text += (
            f". {format_size(one.unreachable_bytes)} of log cannot be used: frames before it, or its key, are missing"
        )
    if one.lost_bytes:
        text += f". {format_size(one.lost_bytes)} with {counted(one.lost_events, 'event')} are lost for certain"
    if one.missing_chunks:
        text += f". Tier 2 lacks {counted(one.missing_chunks, 'chunk')}"
    return text


def _time(at_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
