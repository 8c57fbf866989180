"""``penstock controller``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    AuthConfigOption,
    AuthOption,
    ControllerPortOption,
    DeletionGraceOption,
    HostOption,
    HttpPortOption,
    LogFormatOption,
    MemoryOption,
    MetricsStreamOption,
    MetricsStreamsOption,
    RetentionCycleOption,
    ScalingMinuteOption,
    TlsCertOption,
    TlsClientAuthOption,
    TlsClientCaOption,
    TlsKeyOption,
    TracesOption,
    access_settings,
    loop_times,
    print_line,
    print_nothing,
    tls_settings,
)
from penstock.app.logs import LogFormat
from penstock.app.settings import (
    CONTROLLER_PORT,
    HTTP_PORT,
    METRICS_STREAMS,
    EmbeddedSettings,
    MetricsSettings,
    StandaloneSettings,
    check_server_memory,
)
from penstock.core.units import parse_size
from penstock.model.names import StreamName

if TYPE_CHECKING:
    from penstock.net.tls.client import ClientTls


def controller(
    cluster: ClusterOption,
    name: NameOption,
    secret_file: SecretFileOption,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help=f"{DATA} A controller keeps only keys there.")
    ] = Path("./controller"),
    host: HostOption = "127.0.0.1",
    controller_port: ControllerPortOption = CONTROLLER_PORT,
    http_port: HttpPortOption = HTTP_PORT,
    advertise: AdvertiseOption = None,
    memory: MemoryOption = "512MiB",
    retention_cycle: RetentionCycleOption = "60s",
    deletion_grace: DeletionGraceOption = "1h",
    scaling_minute: ScalingMinuteOption = "60s",
    metrics_streams: MetricsStreamsOption = METRICS_STREAMS,
    metrics_stream: MetricsStreamOption = None,
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
    auth_config: AuthConfigOption = None,
    insecure: InsecureOption = False,
    json: JsonOption = False,
) -> None:
    """Run a controller of a cluster. One is active; the others are standbys, and take over within seconds of its death.

    It exits when another controller may have become active. Run it under a supervisor that restarts it.

    \b
    penstock controller --cluster zk://zk1:2181/penstock/shop --name c1 --secret-file cluster.secret
    """
    serving = StandaloneSettings(
        store=EmbeddedSettings(
            data=data,
            memory_bytes=check_server_memory(parse_size(memory)),
            **loop_times(retention_cycle, deletion_grace, scaling_minute),
        ),
        host=host,
        controller_port=controller_port,
        http_port=http_port,
        advertised_host=advertise,
        insecure=insecure,
        log_format=log_format,
        traces=traces,
        tls=tls_settings(tls_cert, tls_key, tls_client_ca, tls_client_auth),
        access=access_settings(auth, auth_config),
        metrics=MetricsSettings(shown=metrics_streams, named=tuple(map(StreamName.parse, metrics_stream or ()))),
    )
    links_tls = links_tls_settings(serving.tls, store_ca, store_cert, store_key)
    _run(cluster, name, secret_file, serving, links_tls, json=json)


def _run(
    cluster: str, name: str, secret_file: Path, serving: StandaloneSettings, links_tls: ClientTls | None, *, json: bool
) -> None:
    from penstock.app.cluster.address import parse_cluster_address
    from penstock.app.cluster.controller_process import ControllerProcessSettings, run_controller

    settings = ControllerProcessSettings(
        address=parse_cluster_address(cluster),
        name=name,
        secret_file=secret_file,
        serving=serving,
        links_tls=links_tls,
    )
    ready, show_warning = (_ready_json, print_nothing) if json else (_ready_text, print_line)
    run_controller(settings, ready=ready, show_warning=show_warning)


def _ready_json(facts: Mapping[str, Any]) -> None:
    print_json(dict(facts))
    sys.stdout.flush()


def _ready_text(facts: Mapping[str, Any]) -> None:
    if facts["serving"]:
        text = f"controller {facts['name']} is active: {facts['controller']}, HTTP {facts['http']}"
    else:
        text = f"controller {facts['name']} is a standby of cluster {facts['cluster']}"
    print(text, flush=True)
