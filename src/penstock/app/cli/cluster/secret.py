"""``penstock cluster secret``: change the secret of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import typer

from penstock.app.cli.cluster.options import ClusterOption, SecretFileOption
from penstock.app.cli.cluster.session import with_cluster
from penstock.app.cli.common.options import InsecureOption
from penstock.app.cli.common.output import say
from penstock.app.cli.common.target import JsonOption

if TYPE_CHECKING:
    from penstock.ports.cluster.coordination import Coordination
    from penstock.ports.offload import Offload

app = typer.Typer(no_args_is_help=True, help="Change the secret of a cluster while it runs.")


@app.command()
def change(cluster: ClusterOption, secret_file: SecretFileOption, json: JsonOption = False) -> None:
    """Draw a new secret, and let the cluster accept both. FILE then has two lines: the new secret and the earlier one.

    Then copy FILE to all machines, restart all stores and then all controllers, and run `penstock cluster secret finish`.

    \b
    penstock cluster secret change --cluster zk://zk1:2181/penstock/shop --secret-file cluster.secret
    """
    from penstock.app.cluster.operations.secrets import begin_change
    from penstock.storage.machine.rng import RealRng

    _run(cluster, lambda session, offload: begin_change(session, secret_file, offload=offload, rng=RealRng()))
    text = f"the cluster accepts two secrets; copy {secret_file} to all machines and restart stores, then controllers"
    say(text, as_json=json, changed=True, secret_file=str(secret_file))


@app.command()
def finish(
    cluster: ClusterOption, secret_file: SecretFileOption, insecure: InsecureOption = False, json: JsonOption = False
) -> None:
    """Let the cluster accept only the new secret. Tokens that were signed with the earlier one are refused from now on.

    Refused while a process that runs does not use the new secret. Removes the earlier one from FILE.

    \b
    penstock cluster secret finish --cluster zk://zk1:2181/penstock/shop --secret-file cluster.secret
    """
    from penstock.app.cluster.operations.secrets import finish_change
    from penstock.storage.machine.rng import RealRng

    changed = _run(
        cluster,
        lambda session, offload: finish_change(session, secret_file, insecure=insecure, offload=offload, rng=RealRng()),
    )
    text = "the cluster accepts only the new secret" if changed else "no change of the secret is under way"
    say(text, as_json=json, changed=changed, secret_file=str(secret_file))


@app.command()
def record(
    cluster: ClusterOption, secret_file: SecretFileOption, insecure: InsecureOption = False, json: JsonOption = False
) -> None:
    """Record the secret of a cluster that an earlier version created, so that processes with another one are refused.

    Run it on a machine whose store or controller is running. Refused if FILE does not decrypt the keys of the cluster in
    tier 2.

    \b
    penstock cluster secret record --cluster zk://zk1:2181/penstock/shop --secret-file cluster.secret
    """
    from penstock.app.cluster.operations.secrets import record_secret
    from penstock.storage.machine.rng import RealRng

    changed = _run(
        cluster,
        lambda session, offload: record_secret(session, secret_file, insecure=insecure, offload=offload, rng=RealRng()),
    )
    text = "the secret is recorded" if changed else "this secret was already recorded; nothing was changed"
    say(text, as_json=json, changed=changed, secret_file=str(secret_file))


def _run(cluster: str, work: Callable[[Coordination, Offload], Awaitable[Any]]) -> Any:
    """The result of ``work``, in a session of the cluster and with threads for slow calls."""
    from penstock.storage.machine.offload import ThreadOffload

    async def main(session: Coordination) -> Any:
        async with ThreadOffload(threads=2) as offload:
            return await work(session, offload)

    return with_cluster(cluster, main)
