"""Options that the commands of clusters share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.cli.common.options import NAME
from penstock.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from penstock.net.tls.client import ClientTls
    from penstock.net.tls.settings import TlsSettings

ADDRESS = "Address of the cluster: zk://ZOOKEEPER:PORT/ROOT; separate several servers with commas."

ClusterOption = Annotated[
    str, typer.Option("--cluster", metavar="URL", help=ADDRESS, envvar="PENSTOCK_CLUSTER", show_default=False)
]
NameOption = Annotated[
    str,
    typer.Option("--name", metavar="NAME", help=f"{NAME} It must be unique in the cluster.", show_default=False),
]
SecretFileOption = Annotated[
    Path,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        help="File with the secret of the cluster, mode 0600; the same on all machines.",
        show_default=False,
    ),
]
BookkeeperRootOption = Annotated[
    str, typer.Option("--bookkeeper-root", metavar="PATH", help="Root of BookKeeper in ZooKeeper.")
]
StoreCaOption = Annotated[
    Path | None,
    typer.Option(
        "--store-ca",
        metavar="FILE",
        help="CAs of the stores' certificates, in PEM, instead of the system's. With --tls-cert, links to stores use TLS.",
        show_default=False,
    ),
]
StoreCertOption = Annotated[
    Path | None,
    typer.Option(
        "--store-cert",
        metavar="FILE",
        help="Certificate to show to stores that have --tls-client-ca, in PEM, instead of --tls-cert.",
        show_default=False,
    ),
]
StoreKeyOption = Annotated[
    Path | None,
    typer.Option("--store-key", metavar="FILE", help="Private key of --store-cert, in PEM.", show_default=False),
]


def links_tls_settings(
    ports: TlsSettings | None, ca: Path | None, cert: Path | None, key: Path | None
) -> ClientTls | None:
    """TLS of connections to stores: they have it if the ports have it. Raises InvalidArgumentError."""
    from penstock.net.tls.client import ClientTls

    if ports is None:
        if ca or cert or key:
            raise InvalidArgumentError(
                "links to stores use TLS only if the ports do: give --tls-cert and --tls-key too"
            )
        return None
    if cert is None and key is None:
        return ClientTls(ca=ca, certificate=ports.certificate, key=ports.key)
    if cert is None or key is None:
        raise InvalidArgumentError("--store-cert and --store-key belong together; give both")
    return ClientTls(ca=ca, certificate=cert, key=key)
