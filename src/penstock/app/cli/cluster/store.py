"""``penstock store``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.app.cli.cluster.options import (
    ClusterOption,
    NameOption,
    SecretFileOption,
    StoreCaOption,
    StoreCertOption,
    StoreKeyOption,
    links_tls_settings,
)
from penstock.app.cli.common.options import DATA, InsecureOption
from penstock.app.cli.common.output import print_json
from penstock.app.cli.common.target import JsonOption
from penstock.app.cli.upkeep.servers import (
    AdvertiseOption,
    AuthOption,
    HostOption,
    LogFormatOption,
    MemoryOption,
    TlsCertOption,
    TlsClientAuthOption,
    TlsClientCaOption,
    TlsKeyOption,
    TracesOption,
    access_settings,
    tls_settings,
)
from penstock.app.logs import LogFormat
from penstock.app.settings import STORE_PORT, EmbeddedSettings, StandaloneSettings, check_server_memory
from penstock.core.units import parse_size

_LINKS_PORT = STORE_PORT + 1


def store(
    cluster: ClusterOption,
    name: NameOption,
    secret_file: SecretFileOption,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help=f"{DATA} A store keeps only a cache there.")
    ] = Path("./store"),
    host: HostOption = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="Port for clients; 0 selects a free port.")
    ] = STORE_PORT,
    links_port: Annotated[
        int, typer.Option("--links-port", metavar="PORT", help="Port for controllers; 0 selects a free port.")
    ] = _LINKS_PORT,
    advertise: AdvertiseOption = None,
    memory: MemoryOption = "512MiB",
    log_format: LogFormatOption = LogFormat.TEXT,
    traces: TracesOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_client_ca: TlsClientCaOption = None,
    tls_client_auth: TlsClientAuthOption = "required",
    store_ca: StoreCaOption = None,
    store_cert: StoreCertOption = None,
    store_key: StoreKeyOption = None,
    auth: AuthOption = False,
    insecure: InsecureOption = False,
    json: JsonOption = False,
) -> None:
    """Run a store of a cluster. It owns containers, and serves their segments to clients and to the controller.

    Containers move to it automatically. If it dies, other stores take them over. Before it is stopped for long, empty it
    with `penstock cluster drain`.

    \b
    penstock store --cluster zk://zk1:2181/penstock/shop --name s1 --secret-file cluster.secret --data /var/lib/penstock
    """
    from penstock.app.cluster.address import parse_cluster_address
    from penstock.app.cluster.store_process import StoreProcessSettings, run_store

    serving = StandaloneSettings(
        store=EmbeddedSettings(data=data, memory_bytes=check_server_memory(parse_size(memory))),
        host=host,
        store_port=port,
        advertised_host=advertise,
        insecure=insecure,
        log_format=log_format,
        traces=traces,
        tls=tls_settings(tls_cert, tls_key, tls_client_ca, tls_client_auth),
        access=access_settings(auth, None),
    )
    settings = StoreProcessSettings(
        address=parse_cluster_address(cluster),
        name=name,
        secret_file=secret_file,
        links_port=links_port,
        links_tls=links_tls_settings(serving.tls, store_ca, store_cert, store_key),
        serving=serving,
    )
    run_store(settings, ready=_ready_json if json else _ready_text)


def _ready_json(facts: Mapping[str, Any]) -> None:
    print_json(dict(facts))
    sys.stdout.flush()


def _ready_text(facts: Mapping[str, Any]) -> None:
    print(
        f"store {facts['name']} is in cluster {facts['cluster']}: clients {facts['store']}, controllers {facts['links']}",
        flush=True,
    )
