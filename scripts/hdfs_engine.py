"""Fetch and run Apache Hadoop's HDFS on loopback with small heaps: one namenode and datanodes.

The jars come from Maven Central, once, into ``build/cluster`` (65 MB). No process outlives the thread that started it.

    python scripts/hdfs_engine.py                             only fetch
    python scripts/hdfs_engine.py run --directory DIR         a namenode, two datanodes, until Ctrl-C

Tests use the class: ``Hdfs(directory)`` is a context manager.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from cluster_engines import HOME, Engine, EngineError, Server, free_ports, jars, java
from jars import JarsError, fetch_by_maven

HADOOP = "hadoop-3.4.3"
ENGINES = {
    HADOOP: tuple(f"org.apache.hadoop:{name}:3.4.3" for name in ("hadoop-common", "hadoop-hdfs", "hadoop-hdfs-client"))
}
OPENS = ("java.lang", "java.nio", "sun.nio.ch", "java.util", "java.util.concurrent", "java.net", "java.io")
"""Packages of Java's base module that Hadoop reaches into by reflection."""
_SERVERS = "org.apache.hadoop.hdfs.server"


def missing() -> str | None:
    """Why HDFS cannot run here, or ``None`` if it can."""
    if shutil.which("java") is None:
        return "HDFS needs Java 17, and `java` is not found"
    if not jars(HADOOP).is_dir():
        return "HDFS is fetched by: make setup-hdfs"
    return None


def fetch() -> None:
    """Fetch what is missing. Raises EngineError without Maven."""
    HOME.mkdir(parents=True, exist_ok=True)
    if not jars(HADOOP).is_dir():
        print(f"cluster: fetch {HADOOP}", flush=True)
        try:
            fetch_by_maven(HADOOP, ENGINES[HADOOP], jars(HADOOP))
        except JarsError as error:
            raise EngineError(str(error)) from error


class Hdfs(Engine):
    """A namenode with permissions on, whose superuser is the user of this process, and datanodes.

    The first server is the namenode. A file has as many replicas as there are datanodes. A block that is closed is on
    disk. ``settings``: for hdfs-site.xml. ``conf`` is the directory for HADOOP_CONF_DIR.
    """

    def __init__(
        self, directory: Path, *, datanodes: int = 2, settings: Mapping[str, object] | None = None, heap_mb: int = 160
    ) -> None:
        self.rpc, *ports = free_ports(1 + datanodes, also=(0, 1, 2))
        self.web = self.rpc + 1
        self.url = f"hdfs://127.0.0.1:{self.rpc}"
        self.conf = directory / "conf"
        self._directory = directory
        self._datanodes = datanodes
        self._configure(settings or {})
        home = directory / "namenode"
        self._namenode = self._command(home, heap_mb, f"{_SERVERS}.namenode.NameNode")
        self.servers = [Server(home, self.rpc, self._namenode, self._is_up)]
        for number, port in enumerate(ports, 1):
            self.servers.append(self._datanode(directory / f"datanode-{number}", port))

    def _configure(self, settings: Mapping[str, object]) -> None:
        # The jars hold no web pages, and the servers do not start without these directories.
        for name in ("hdfs", "datanode", "static"):
            (self.conf / "webapps" / name).mkdir(parents=True, exist_ok=True)
        _write(self.conf / "core-site.xml", {"fs.defaultFS": self.url, "fs.trash.interval": 60})
        values: dict[str, object] = {
            "dfs.namenode.rpc-address": f"127.0.0.1:{self.rpc}",
            "dfs.namenode.http-address": f"127.0.0.1:{self.web}",
            "dfs.namenode.secondary.http-address": "127.0.0.1:0",
            "dfs.namenode.name.dir": f"file://{self._directory / 'namenode' / 'name'}",
            "dfs.replication": self._datanodes,
            "dfs.namenode.handler.count": 4,
            "dfs.datanode.handler.count": 4,
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.namenode.safemode.extension": 0,
            "dfs.heartbeat.interval": 1,
            "dfs.namenode.heartbeat.recheck-interval": 2000,
            "dfs.namenode.redundancy.interval.seconds": 2,
            # With two datanodes, one that works beside an idle one counts as overloaded.
            "dfs.namenode.redundancy.considerLoad": "false",
            "dfs.namenode.resource.du.reserved": 0,
            "dfs.datanode.du.reserved": 0,
            "dfs.datanode.synconclose": "true",
        }
        _write(self.conf / "hdfs-site.xml", values | dict(settings))

    def _datanode(self, home: Path, port: int) -> Server:
        (home / "data").mkdir(parents=True, exist_ok=True)
        addresses = {"address": port, "http.address": port + 1, "ipc.address": port + 2}
        flags = [f"-Ddfs.datanode.{name}=127.0.0.1:{number}" for name, number in addresses.items()]
        flags.append(f"-Ddfs.datanode.data.dir=file://{home / 'data'}")
        command = self._command(home, 128, f"{_SERVERS}.datanode.DataNode", *flags)
        return Server(home, port, command, partial(self._has, port))

    def _command(self, home: Path, heap_mb: int, main: str, *arguments: str) -> list[str]:
        home.mkdir(parents=True, exist_ok=True)
        (home / "log4j.properties").write_text(
            "log4j.rootLogger=WARN,F\nlog4j.appender.F=org.apache.log4j.FileAppender\n"
            f"log4j.appender.F.File={home / 'server.log'}\nlog4j.appender.F.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.F.layout.ConversionPattern=%d %p %c{1} %m%n\n"
        )
        opened = [part for package in OPENS for part in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
        flags = (*opened, f"-Dhadoop.home.dir={self._directory}", f"-Dhadoop.log.dir={home}")
        command = java(HADOOP, heap_mb, flags, (main, *arguments))
        place = command.index("-cp") + 1
        command[place] = f"{home}:{self.conf}:{command[place]}"
        return command

    def start(self) -> None:
        if not (self._directory / "namenode" / "name" / "current").exists():
            command = [*self._namenode, "-format", "-nonInteractive"]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode:
                raise EngineError(f"the namenode was not formatted: {made.stderr[-2000:]}")
        super().start()

    def state(self) -> dict[str, Any]:
        """What the namenode reports about itself; empty if it does not answer."""
        address = f"http://127.0.0.1:{self.web}/jmx?qry=Hadoop:service=NameNode,name=NameNodeInfo"
        try:
            with urllib.request.urlopen(address, timeout=2) as answer:
                found: list[dict[str, Any]] = json.load(answer)["beans"]
                return found[0] if found else {}
        except OSError:
            return {}

    def _is_up(self) -> bool:
        return "Safemode" in self.state()

    def _has(self, port: int) -> bool:
        """Whether the datanode is registered, and the namenode takes changes."""
        state = self.state()
        nodes: dict[str, Any] = json.loads(state.get("LiveNodes", "{}"))
        alive = any(node["xferaddr"].endswith(f":{port}") and node["lastContact"] < 5 for node in nodes.values())
        return alive and not state["Safemode"]

    def shell(self, *arguments: str) -> str:
        """Output of ``hdfs dfs``, such as ``-ls -R /``. Raises EngineError if it fails."""
        return self._tool("org.apache.hadoop.fs.FsShell", *arguments)

    def admin(self, *arguments: str) -> str:
        """Output of ``hdfs dfsadmin``, such as ``-safemode enter``. Raises EngineError if it fails."""
        return self._tool("org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments)

    def _tool(self, main: str, *arguments: str) -> str:
        command = self._command(self._directory / "tool", 96, main, *arguments)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise EngineError(f"{' '.join(arguments)}: {done.stdout[-2000:]}")
        return done.stdout


def _write(path: Path, values: Mapping[str, object]) -> None:
    properties = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(str(value))}</value></property>\n"
        for name, value in values.items()
    )
    path.write_text(f'<?xml version="1.0"?>\n<configuration>\n{properties}</configuration>\n')


def run(directory: Path, datanodes: int) -> None:
    """Start it, print where it is, and wait for Ctrl-C."""
    with Hdfs(directory, datanodes=datanodes) as started:
        print(f"hdfs: {started.url}, settings in {started.conf}", flush=True)
        print("hdfs: end with Ctrl-C", flush=True)
        while True:
            signal.pause()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Fetch and run HDFS.")
    parser.add_argument("action", nargs="?", choices=("fetch", "run"), default="fetch")
    parser.add_argument("--directory", type=Path, help="where the servers keep their data")
    parser.add_argument("--datanodes", type=int, default=2)
    wanted = parser.parse_args(arguments)
    try:
        fetch()
        if wanted.action == "run":
            if wanted.directory is None:
                parser.error("run needs --directory")
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            run(wanted.directory.resolve(), wanted.datanodes)
    except KeyboardInterrupt:
        print("hdfs: stopped")
    except EngineError as error:
        sys.exit(f"hdfs: {error}")


if __name__ == "__main__":
    main()
