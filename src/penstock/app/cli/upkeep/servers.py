"""``penstock standalone`` and ``penstock demo``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from penstock.app.access.settings import AccessSettings, load_access_settings
from penstock.app.cli.common.options import DATA, DURATIONS, SIZES, TIER2, EndpointOption, InsecureOption, LimitOption
from penstock.app.cli.common.output import print_json
from penstock.app.cli.common.target import JsonOption
from penstock.app.logs import LogFormat
from penstock.app.settings import (
    CONTROLLER_PORT,
    HTTP_PORT,
    METRICS_STREAMS,
    SHOWN_STREAMS_MAX,
    STORE_PORT,
    WORKERS_MAX,
    EmbeddedSettings,
    MetricsSettings,
    StandaloneSettings,
    check_server_memory,
)
from penstock.core.units import parse_duration_ms, parse_size
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.net.tls.settings import TlsSettings

DataOption = Annotated[Path, typer.Option("--data", metavar="DIR", help=f"{DATA} Created if it does not exist.")]
HostOption = Annotated[str, typer.Option("--host", metavar="HOST", help="Address to listen on.")]
ControllerPortOption = Annotated[
    int, typer.Option("--controller-port", metavar="PORT", help="Controller API; 0 selects a free port.")
]
StorePortOption = Annotated[
    int,
    typer.Option(
        "--store-port",
        metavar="PORT",
        help="Port of the segment store; further workers use the next ports. 0 takes free ports.",
    ),
]
HttpPortOption = Annotated[
    int, typer.Option("--http-port", metavar="PORT", help="REST interface; 0 selects a free port.")
]
AdvertiseOption = Annotated[
    str | None,
    typer.Option(
        "--advertise", metavar="HOST", help="Address that clients connect to, if it is not --host.", show_default=False
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        max=WORKERS_MAX,
        help="Processes that hold the data, fixed when a store is created.  [default: 1]",
        show_default=False,
    ),
]
MemoryOption = Annotated[
    str,
    typer.Option("--memory", metavar="SIZE", help="Memory of the process, or of each worker: 96MiB or more."),
]
LogOption = Annotated[
    str,
    typer.Option(
        "--log",
        metavar="SIZE",
        help=f"Disk space for the write-ahead log, or for that of each worker. {SIZES} Or"
        " bookkeeper://ZOOKEEPER:PORT/PATH: a log on BookKeeper, fixed when a store is created.",
    ),
]
AckOption = Annotated[
    str,
    typer.Option(
        "--ack",
        metavar="WHEN",
        help="When an append is acknowledged: disk, once the log is on this disk or on BookKeeper; tier2, once tier 2 has it:"
        " then the loss of this machine loses nothing. Needs --tier2 in a bucket or a directory. Fixed when a store is"
        " created.",
    ),
]
AckWaitOption = Annotated[
    str,
    typer.Option(
        "--ack-wait",
        metavar="DURATION",
        help=f"With --ack tier2 in a bucket: the longest time that small appends wait to share an object. {DURATIONS}",
    ),
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="With a log on BookKeeper and --tier2, or --ack tier2: if the data directory is new or out of date, continue"
        " the store from its log and tier 2. A server that still runs this store is stopped. It never creates a store.",
    ),
]
RetentionCycleOption = Annotated[
    str, typer.Option("--retention-cycle", metavar="DURATION", help=f"How often retention runs. {DURATIONS}")
]
ScalingMinuteOption = Annotated[
    str,
    typer.Option(
        "--scaling-minute",
        metavar="DURATION",
        help="Length of a minute in scaling by rate. Use less than 60s only for trials.",
    ),
]
DeletionGraceOption = Annotated[
    str,
    typer.Option(
        "--deletion-grace",
        metavar="DURATION",
        help="How long a deleted stream can be restored, for example 1h or 7d; 0s: never.",
    ),
]
Tier2Option = Annotated[
    str | None,
    typer.Option("--tier2", metavar="PLACE", help=TIER2, show_default=False),
]
UnitOption = Annotated[
    str,
    typer.Option(
        "--tier2-unit", metavar="SIZE", help=f"How much a segment collects before it writes an object. {SIZES}"
    ),
]
WaitOption = Annotated[
    str, typer.Option("--tier2-wait", metavar="DURATION", help=f"How long a segment collects at most. {DURATIONS}")
]
TlsCertOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Certificate of the server and its issuers, in PEM: all ports use TLS. New files are loaded without a"
        " restart.",
        show_default=False,
    ),
]
TlsKeyOption = Annotated[
    Path | None,
    typer.Option("--tls-key", metavar="FILE", help="Private key of --tls-cert, in PEM; mode 0600.", show_default=False),
]
TlsClientCaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-client-ca",
        metavar="FILE",
        help="Accept clients with certificates from these CAs, in PEM (mutual TLS).",
        show_default=False,
    ),
]
TlsClientAuthOption = Annotated[
    str,
    typer.Option(
        "--tls-client-auth",
        metavar="WHEN",
        help="Whether each client needs a certificate: required or optional.",
    ),
]
AuthOption = Annotated[
    bool,
    typer.Option("--auth", help="Callers need credentials: users of `penstock user`, or tokens of `penstock token`."),
]
AuthConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--auth-config",
        metavar="FILE",
        help="Settings of authentication in TOML, such as an identity provider. Implies --auth.",
        show_default=False,
    ),
]
MetricsStreamsOption = Annotated[
    int,
    typer.Option(
        "--metrics-streams",
        metavar="N",
        min=0,
        max=SHOWN_STREAMS_MAX,
        help="How many streams /metrics shows, largest first.",
    ),
]
MetricsStreamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metrics-stream",
        metavar="SCOPE/STREAM",
        help="A stream that /metrics always shows; repeatable.",
        show_default=False,
    ),
]

LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        metavar="text|json",
        help="Format of the log on standard error: text for people, json for programs that collect logs.",
    ),
]
TracesOption = Annotated[
    bool,
    typer.Option(
        "--traces",
        help="Send spans to the OpenTelemetry collector that OTEL_EXPORTER_OTLP_ENDPOINT and related variables name."
        " Needs penstock[tracing].",
    ),
]


def standalone(
    data: DataOption = Path("./store"),
    host: HostOption = "127.0.0.1",
    controller_port: ControllerPortOption = CONTROLLER_PORT,
    store_port: StorePortOption = STORE_PORT,
    http_port: HttpPortOption = HTTP_PORT,
    advertise: AdvertiseOption = None,
    workers: WorkersOption = None,
    memory: MemoryOption = "512MiB",
    log: LogOption = "256MiB",
    ack: AckOption = "disk",
    ack_wait: AckWaitOption = "250ms",
    take_over: TakeOverOption = False,
    retention_cycle: RetentionCycleOption = "60s",
    deletion_grace: DeletionGraceOption = "1h",
    scaling_minute: ScalingMinuteOption = "60s",
    tier2: Tier2Option = None,
    s3_endpoint: EndpointOption = None,
    tier2_unit: UnitOption = "8MiB",
    tier2_wait: WaitOption = "5m",
    metrics_streams: MetricsStreamsOption = METRICS_STREAMS,
    metrics_stream: MetricsStreamOption = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    traces: TracesOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_client_ca: TlsClientCaOption = None,
    tls_client_auth: TlsClientAuthOption = "required",
    auth: AuthOption = False,
    auth_config: AuthConfigOption = None,
    insecure: InsecureOption = False,
    json: JsonOption = False,
) -> None:
    """Run a store, in one process or several. Ports are on loopback unless --host is given. Stops cleanly on Ctrl-C;
    after a crash, start it again: no acknowledged event is lost.

    \b
    penstock standalone --data ./store --workers 4 --tier2 s3://bucket/prefix
    penstock standalone --data ./store --tls-cert server.pem --tls-key server.key
    """
    settings = StandaloneSettings(
        store=EmbeddedSettings(
            data=data,
            **_sizes(memory, log),
            **_acks(ack, ack_wait, take_over=take_over),
            **loop_times(retention_cycle, deletion_grace, scaling_minute),
            **_tier2(tier2, s3_endpoint, tier2_unit, tier2_wait, insecure=insecure),
        ),
        host=host,
        **_ports(controller_port, store_port, http_port),
        advertised_host=advertise,
        insecure=insecure,
        workers=workers,
        tls=tls_settings(tls_cert, tls_key, tls_client_ca, tls_client_auth),
        log_format=log_format,
        traces=traces,
        access=access_settings(auth, auth_config),
        metrics=MetricsSettings(shown=metrics_streams, named=tuple(map(StreamName.parse, metrics_stream or ()))),
    )
    _serve(settings, json=json)


def _serve(settings: StandaloneSettings, *, json: bool) -> None:
    from penstock.app.standalone import run  # only here: it imports the servers

    run(settings, ready=_ready_json if json else _ready_text, show_warning=print_nothing if json else print_line)


class _Ports(TypedDict):
    controller_port: int
    store_port: int
    http_port: int


def _ports(controller: int, store: int, http: int) -> _Ports:
    return _Ports(controller_port=controller, store_port=store, http_port=http)


class _Sizes(TypedDict, total=False):
    memory_bytes: int
    log_bytes: int
    log_at: str


def _sizes(memory: str, log: str) -> _Sizes:
    """``log``: a size, or the address of a log on BookKeeper."""
    # The memory is checked first: otherwise the error would name an embedded store's minimum, which is too small for a
    # server.
    sizes: _Sizes = {"memory_bytes": check_server_memory(parse_size(memory))}
    if "://" in log:
        sizes["log_at"] = log
    else:
        sizes["log_bytes"] = parse_size(log)
    return sizes


class _Acks(TypedDict):
    ack: str
    ack_wait_ms: int
    take_over: bool


def _acks(ack: str, wait: str, *, take_over: bool) -> _Acks:
    return {"ack": ack, "ack_wait_ms": parse_duration_ms(wait), "take_over": take_over}


class _Times(TypedDict):
    retention_cycle_ms: int
    deletion_grace_ms: int
    scaling_minute_ms: int


def loop_times(retention_cycle: str, deletion_grace: str, scaling_minute: str) -> _Times:
    """How often the loops of a controller run. Raises InvalidArgumentError."""
    return {
        "retention_cycle_ms": parse_duration_ms(retention_cycle),
        "deletion_grace_ms": parse_duration_ms(deletion_grace),
        "scaling_minute_ms": parse_duration_ms(scaling_minute),
    }


class _Tier2(TypedDict):
    tier2: str | None
    tier2_endpoint: str | None
    tier2_unit_bytes: int
    tier2_wait_ms: int
    tier2_insecure: bool


def _tier2(place: str | None, endpoint: str | None, unit: str, wait: str, *, insecure: bool) -> _Tier2:
    return {
        "tier2": place,
        "tier2_endpoint": endpoint,
        "tier2_unit_bytes": parse_size(unit),
        "tier2_wait_ms": parse_duration_ms(wait),
        "tier2_insecure": insecure,
    }


def access_settings(auth: bool, config: Path | None) -> AccessSettings | None:
    """What ``--auth`` and ``--auth-config`` say. Raises InvalidArgumentError, OSError."""
    if config is not None:
        return load_access_settings(config)
    return AccessSettings() if auth else None


def tls_settings(cert: Path | None, key: Path | None, client_ca: Path | None, client_auth: str) -> TlsSettings | None:
    """What the options of TLS say. Raises InvalidArgumentError: only some of them are given."""
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        missing = "--tls-cert" if cert is None else "--tls-key"
        raise InvalidArgumentError(f"TLS needs a certificate and its key; give {missing} too")
    if client_auth not in ("required", "optional"):
        raise InvalidArgumentError("--tls-client-auth must be required or optional", given=client_auth[:40])
    return TlsSettings(
        certificate=cert,
        key=key,
        client_ca=client_ca,
        client_auth="required" if client_auth == "required" else "optional",
    )


def _ready_json(facts: dict[str, object]) -> None:
    print_json(facts)
    sys.stdout.flush()


def print_line(text: str) -> None:
    """Print a warning for people."""
    print(text, flush=True)


def print_nothing(_text: str) -> None:
    """Print no warning: programs read this standard output, and the log has the warning."""


def _ready_text(facts: dict[str, object]) -> None:
    workers = facts["workers"]
    stores = [str(worker["store"]) for worker in workers] if isinstance(workers, list) else []
    places = f"controller {facts['controller']}, segment store {', '.join(stores or [str(facts['store'])])}"
    places = f"{places}, HTTP {facts['http']}{', all with TLS' if facts['tls'] else ''}"
    print(f"penstock serves {facts['data']}: {places}")
    scheme = "tls://" if facts["tls"] else ""
    # Show the options that a client needs besides the address. Only the operator knows the files.
    trust = " --tls-ca CA.pem" if facts["tls"] else ""
    proof = " --user NAME --password-file FILE" if facts["auth"] else ""
    print(
        f"try: penstock stream create demo/clicks --controller {scheme}{facts['controller']}{trust}{proof}", flush=True
    )


def demo(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help=f"{DATA} The demo empties it.")] = Path("./data"),
    limit: LimitOption = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")] = False,
) -> None:
    """The demo: 336,776 flights through a store, a Spark query and retention, with a kill -9 in the middle.

    \b
    penstock demo --data ./data
    """
    from penstock.app.demo.packages import require_packages

    require_packages()
    from penstock.app.demo.run import run_demo

    raise typer.Exit(run_demo(data, limit=limit, plain=plain))
