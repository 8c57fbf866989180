"""Options that the commands of clusters share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.app.cli.common.options import NAME

ADDRESS = "The cluster: zk://ZOOKEEPER:PORT/ROOT; separate several servers by commas."

ClusterOption = Annotated[str, typer.Option("--cluster", metavar="URL", help=ADDRESS, show_default=False)]
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
LinksCaOption = Annotated[
    Path | None,
    typer.Option(
        "--links-ca",
        metavar="FILE",
        help="CA certificates of the stores, in PEM, instead of the system's. With --tls-cert, links to stores use TLS.",
        show_default=False,
    ),
]
LinksCertOption = Annotated[
    Path | None,
    typer.Option(
        "--links-cert",
        metavar="FILE",
        help="Certificate for stores with --tls-client-ca, in PEM, instead of --tls-cert.",
        show_default=False,
    ),
]
LinksKeyOption = Annotated[
    Path | None,
    typer.Option("--links-key", metavar="FILE", help="Private key of --links-cert, in PEM.", show_default=False),
]
