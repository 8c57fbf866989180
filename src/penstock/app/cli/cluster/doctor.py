"""``penstock cluster doctor``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from penstock.app.cli.cluster.options import ClusterOption
from penstock.app.cli.cluster.session import run
from penstock.app.cli.common.options import InsecureOption
from penstock.app.cli.common.output import print_json
from penstock.app.cli.common.target import JsonOption
from penstock.app.cli.upkeep.scrub import DAMAGE_STATUS

if TYPE_CHECKING:
    from penstock.app.cluster.operations.doctor import Diagnosis


def doctor(
    cluster: ClusterOption,
    insecure: InsecureOption = False,
    json: JsonOption = False,
) -> None:
    """Find out what is wrong with a cluster, its ZooKeeper, its bookies and its tier 2. Changes nothing.

    Each finding is one line that ends with what to do. Exit status 7: something is wrong.

    \b
    penstock cluster doctor --cluster zk://zk1:2181/penstock/shop
    """
    from penstock.app.cluster.address import parse_cluster_address
    from penstock.app.cluster.operations.doctor import diagnose
    from penstock.storage.machine.clock import RealClock
    from penstock.storage.machine.offload import ThreadOffload
    from penstock.storage.machine.rng import RealRng

    address = parse_cluster_address(cluster)

    async def work() -> Diagnosis:
        async with ThreadOffload(threads=2) as offload:
            return await diagnose(address, insecure=insecure, clock=RealClock(), rng=RealRng(), offload=offload)

    found = run(work)
    if json:
        print_json({"cluster": found.cluster, "wrong": found.is_wrong, "findings": list(map(asdict, found.findings))})
    else:
        for one in found.findings:
            print(f"{'wrong' if one.wrong else 'note'}: {one}")
        if not found.is_wrong:
            print("nothing is wrong")
    if found.is_wrong:
        raise typer.Exit(DAMAGE_STATUS)
