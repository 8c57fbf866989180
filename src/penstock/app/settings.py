"""Settings of a running store: plain values, checked together once, at start."""

from __future__ import annotations

import ipaddress
from dataclasses import field
from pathlib import Path
from typing import TypedDict

from penstock.app.access.settings import AccessSettings
from penstock.app.logs import LogFormat
from penstock.app.replicated.log_place import TIER2_LOG, parse_log_place
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.values.dataclass import dataclass
from penstock.net.dial.addresses import host_of, is_host
from penstock.net.tls.settings import TlsSettings

CONTROLLER_PORT = 9090
STORE_PORT = 12345
HTTP_PORT = 9091
MEMORY_MIN_BYTES = 64 << 20
SERVER_MEMORY_MIN_BYTES = 96 << 20
MEMORY_BASE_BYTES = 80 << 20
"""Memory of an empty server: code and libraries."""
WORKERS_MAX = 64
"""A machine that could use more processes would need more than one controller."""
WILDCARDS = ("0.0.0.0", "::", "")
"""Hosts that mean all addresses of a machine: a server can listen there, and nobody can connect there."""
WORKING_MIN_BYTES = 16 << 20
ACKS = ("disk", "tier2")
"""When an append can be acknowledged; the first is the default."""
METRICS_STREAMS = 20  # streams
SHOWN_STREAMS_MAX = 1000
"""Streams that metrics show one by one. More would make every scrape slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings:
    """A store inside this process.

    ``memory_bytes`` limits the memory of a server, or what an embedded store adds to its process (default 512 MiB, of
    which code and libraries use 80; at least 64 MiB, and 96 for a server). ``log_bytes`` limits the disk space of tier 1
    (default 256 MiB, allocated as needed). ``log_file_bytes`` must hold one frame of the largest append, 17 MiB.
    ``log_at``: ``bookkeeper://ZOOKEEPER:PORT/PATH``, where tier 1 is; None: in the data directory. ``ack``: when an append
    is acknowledged: ``disk``, once tier 1 has it; ``tier2``, once tier 2 has it, and then tier 1 is kept there. In a bucket,
    small appends then collect for up to ``ack_wait_ms`` (250 ms). ``log_at`` and ``ack`` are fixed when a store is created.
    ``take_over``: if the directory lacks the metadata of the store whose log is at ``log_at`` or in ``tier2``, take over that
    store; its own directory or machine is lost. It creates no store.
    ``retention_cycle_ms`` is the time between retention cycles (default 60 s). ``deletion_grace_ms`` is how long a deleted
    stream can be restored and keeps its disk space (default 1 h; 0: deletions are final). ``scaling_minute_ms`` is how long
    a minute of scaling by rate is (default 60 s; shorter in tests and demonstrations).

    ``tier2`` is where chunks are stored: None for the data directory (or where the store has them already),
    ``s3://bucket/prefix``, ``hdfs://namenode:port/path``, or another directory. ``tier2_endpoint`` is the URL of an S3
    service other than Amazon's. In an object store or HDFS, a segment is written when it has gathered
    ``tier2_unit_bytes`` (8 MiB: a terabyte takes 262,144 uploads, half of them small) or has waited ``tier2_wait_ms``
    (5 minutes). ``tier2_insecure`` allows plain HTTP beyond loopback.
    """

    data: Path
    memory_bytes: int = 512 << 20
    log_bytes: int = 256 << 20
    log_file_bytes: int = 20 << 20
    log_at: str | None = None
    ack: str = ACKS[0]
    ack_wait_ms: int = 250
    take_over: bool = False
    chunk_bytes: int = 16 << 20
    retention_cycle_ms: int = 60_000
    deletion_grace_ms: int = 3_600_000
    scaling_minute_ms: int = 60_000
    tier2: str | None = None
    tier2_endpoint: str | None = None
    tier2_unit_bytes: int = 8 << 20
    tier2_wait_ms: int = 300_000
    tier2_insecure: bool = False

    def __post_init__(self) -> None:
        if self.memory_bytes < MEMORY_MIN_BYTES:
            raise InvalidArgumentError(
                "memory budget is too small", memory_bytes=self.memory_bytes, least_bytes=MEMORY_MIN_BYTES
            )
        if self.log_bytes < 4 * self.log_file_bytes:
            raise InvalidArgumentError(
                "the log needs at least four files", log_bytes=self.log_bytes, file_bytes=self.log_file_bytes
            )
        self._check_log()
        if self.retention_cycle_ms < 10:
            raise InvalidArgumentError("retention cycle is under 10 ms", retention_cycle_ms=self.retention_cycle_ms)
        if self.scaling_minute_ms < 10:
            raise InvalidArgumentError("a minute of scaling is under 10 ms", scaling_minute_ms=self.scaling_minute_ms)
        if self.deletion_grace_ms < 0:
            raise InvalidArgumentError("deletion grace is negative", deletion_grace_ms=self.deletion_grace_ms)
        if not isinstance(self.tier2, str | None) or not isinstance(self.tier2_endpoint, str | None):
            raise InvalidArgumentError("tier 2 must be a URL or a path", tier2=self.tier2, endpoint=self.tier2_endpoint)
        if self.tier2_unit_bytes < 1 or self.tier2_wait_ms < 10:
            raise InvalidArgumentError(
                "tier2_unit_bytes must be at least 1, and tier2_wait_ms at least 10",
                tier2_unit_bytes=self.tier2_unit_bytes,
                tier2_wait_ms=self.tier2_wait_ms,
            )

    def _check_log(self) -> None:
        if self.ack not in ACKS:
            raise InvalidArgumentError("ack must be disk or tier2", ack=self.ack)
        if self.ack_wait_ms < 0:
            raise InvalidArgumentError("ack_wait_ms is negative", ack_wait_ms=self.ack_wait_ms)
        if self.log_at is not None:
            parse_log_place(self.log_at)
            if self.ack != ACKS[0]:
                raise InvalidArgumentError("with a log on BookKeeper, leave --ack out", ack=self.ack, log=self.log_at)
        if self.ack != ACKS[0] and str(self.tier2 or "").startswith("hdfs:"):
            raise InvalidArgumentError(
                "--ack tier2 is possible with buckets and directories; with HDFS, keep the log on BookKeeper",
                tier2=self.tier2,
            )
        if self.take_over and self.log_url is None:
            raise InvalidArgumentError(
                "only a store whose log is on BookKeeper or in tier 2 can be taken over: give its --log, or --ack tier2"
            )

    @property
    def log_url(self) -> str | None:
        """Where tier 1 is; None: in the data directory."""
        return TIER2_LOG if self.ack != ACKS[0] else self.log_at

    @property
    def working_bytes(self) -> int:
        """The part of the memory budget that is left for data."""
        return max(WORKING_MIN_BYTES, self.memory_bytes - MEMORY_BASE_BYTES)

    def plain_http_allowed(self, host: str) -> bool:
        """Whether tier 2 may be reached at that host without TLS."""
        return self.tier2_insecure or is_loopback(host)


class EmbeddedOptions(TypedDict, total=False):
    """The fields of ``EmbeddedSettings``, as keyword arguments of ``penstock.open`` and ``penstock.open_async``."""

    memory_bytes: int
    log_bytes: int
    log_file_bytes: int
    log_at: str | None
    ack: str
    ack_wait_ms: int
    take_over: bool
    chunk_bytes: int
    retention_cycle_ms: int
    deletion_grace_ms: int
    scaling_minute_ms: int
    tier2: str | None
    tier2_endpoint: str | None
    tier2_unit_bytes: int
    tier2_wait_ms: int
    tier2_insecure: bool


def check_server_memory(memory_bytes: int) -> int:
    """Return the budget if it is enough for a server. Raises InvalidArgumentError, which names the minimum."""
    if memory_bytes < SERVER_MEMORY_MIN_BYTES:
        raise InvalidArgumentError(
            "memory budget is too small for a server", memory_bytes=memory_bytes, least_bytes=SERVER_MEMORY_MIN_BYTES
        )
    return memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Which streams ``/metrics`` shows one by one: the ``shown`` largest (default 20) and those ``named``.

    Each costs about 4 ms of CPU in 30 s, and some 20 lines.
    """

    shown: int = METRICS_STREAMS
    named: tuple[StreamName, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.shown + len(self.named) <= SHOWN_STREAMS_MAX:
            raise InvalidArgumentError(
                "too many streams for metrics", shown=self.shown, named=len(self.named), most=SHOWN_STREAMS_MAX
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneSettings:
    """A server for clients. Port 0 selects a free port.

    ``workers`` is the number of processes that hold the data. Each has its own share of the segments, port and log, and
    the full budgets of ``store``. None: as the store was created; a new one has 1, which is this process. Worker ``n``
    listens on ``store_port + n``.

    Beyond loopback it needs TLS and authentication, unless ``insecure`` allows other machines to reach an unprotected
    port. ``advertised_host`` is the host that clients connect to (default: the bound host). ``metrics``: see
    ``MetricsSettings``. ``tls``: None for plain connections. ``access``: None if callers need no identity.
    ``log_format``: of the lines on standard error. ``traces``: send spans to the collector that the environment names.
    """

    store: EmbeddedSettings
    host: str = "127.0.0.1"
    controller_port: int = CONTROLLER_PORT
    store_port: int = STORE_PORT
    http_port: int = HTTP_PORT
    advertised_host: str | None = None
    insecure: bool = False
    workers: int | None = None
    log_format: LogFormat = LogFormat.TEXT
    traces: bool = False
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    tls: TlsSettings | None = None
    access: AccessSettings | None = None

    def __post_init__(self) -> None:
        for name in ("controller_port", "store_port", "http_port"):
            if not 0 <= getattr(self, name) < 1 << 16:
                raise InvalidArgumentError("port must be 0 to 65535", **{name: getattr(self, name)})
        if self.workers is not None and not 1 <= self.workers <= WORKERS_MAX:
            raise InvalidArgumentError("number of workers is out of range", workers=self.workers, most=WORKERS_MAX)
        check_server_memory(self.store.memory_bytes)
        if self.advertised_host is not None:
            check_advertised(self.advertised_host)
        if self.unprotected and not self.insecure:
            raise InvalidArgumentError(
                f"other machines can reach this address, and {' and '.join(self.unprotected)}; --insecure starts without",
                host=self.host,
            )

    @property
    def unprotected(self) -> tuple[str, ...]:
        """What protects the ports from other machines and is missing. Empty on loopback."""
        if is_loopback(self.host):
            return ()
        tls = () if self.tls is not None else ("TLS is missing (--tls-cert and --tls-key)",)
        return tls if self.access is not None else (*tls, "authentication is missing (--auth)")

    @property
    def advertised(self) -> str:
        if self.advertised_host is not None:
            return self.advertised_host
        return "127.0.0.1" if self.host in WILDCARDS else self.host

    def worker_port(self, worker: int) -> int:
        """The port of a worker; 0: any free port. Raises InvalidArgumentError if it is invalid or another port of ours."""
        if self.store_port == 0:
            return 0
        port = self.store_port + worker
        if port >= 1 << 16 or (worker and port in (self.controller_port, self.http_port)):
            raise InvalidArgumentError(
                "ports of the workers, which follow each other, run into another one; choose another --store-port",
                worker=worker,
                port=port,
            )
        return port

    @property
    def http_names(self) -> tuple[str, ...] | None:
        """Host names that HTTP requests may use, besides those of loopback. None: any. A port beyond loopback needs no
        such check, because an attacker can reach it directly, without a browser on this machine."""
        return (self.advertised,) if is_loopback(self.host) else None


def check_advertised(host: str) -> None:
    """Raise InvalidArgumentError unless others can connect to the host: it is one name or one numeric address."""
    try:
        is_one = is_host(host_of(f"[{host}]" if ":" in host else host))
    except InvalidArgumentError:
        is_one = False
    if not is_one or host in WILDCARDS:
        raise InvalidArgumentError(
            "the address that others connect to must be the name or the number of one host, without a port: --advertise",
            given=host,
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
