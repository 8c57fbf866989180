"""What the measurements of the pipeline share: a session, a store, Kafka if it is here, and a deadline for all."""

from __future__ import annotations

import compileall
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import penstock
from bench.measure import Row, Skipped, figure, seconds
from bench.peers import servers
from bench.peers.client_process import ClientProcess, WorkError
from bench.peers.servers import AbsentError
from bench.peers.worker import payloads
from penstock.testing.server import ServerProcess

KAFKA = "Spark's Kafka source"
PARQUET = "Parquet of the same rows"


@dataclass(slots=True, kw_only=True)
class World:
    """``scale`` is the share of the full number of rows. ``kafka`` is its address, or None with ``no_kafka`` saying why."""

    directory: Path
    runs: int
    scale: float
    deadline: float
    spark: Any = None
    store: Any = None
    address: str = ""
    kafka: str | None = None
    no_kafka: str = ""
    clients: dict[str, ClientProcess] = field(default_factory=dict)
    parquet: dict[str, str] = field(default_factory=dict)

    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def rows(self, full: int) -> int:
        return max(10_000, int(full * self.scale))

    def without_kafka(self, name: str, work: str) -> list[Row]:
        return [Skipped(id=name, work=work, who="Kafka", reason=self.no_kafka)] if self.kafka is None else []

    # Streams and topics

    def stream(self, name: str, segments: int = 4) -> Any:
        return self.store.create_stream(f"bench/{name}", segments=segments, create_scope=True, if_absent=True)

    def fill(self, name: str, size: int, count: int, segments: int = 4) -> Any:
        """A stream of random events, all of them in tier 2: a batch read is about that."""
        stream = self.stream(name, segments)
        with stream.writer() as writer:
            for start in range(0, count, 100_000):
                writer.write_many(payloads(size, min(100_000, count - start)))
            writer.flush()
        self.settle(stream)
        return stream

    @staticmethod
    def settle(stream: Any, limit_s: float = 30) -> None:
        """Wait until all of it is in chunks."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            found = stream.describe()
            if found.disk_bytes >= found.size_bytes:
                return
            time.sleep(0.2)

    def topic(self, name: str, partitions: int = 4) -> None:
        self.clients["kafka"].ask("create", topic=name, partitions=partitions)

    def fill_topic(self, name: str, size: int, count: int, partitions: int = 4) -> None:
        self.topic(name, partitions)
        self.clients["kafka"].ask(
            "ingest", topic=name, size=size, count=count, keys=1000, partitions=partitions, limit_s=120
        )

    def watcher(self, who: str) -> ClientProcess:
        """A second client: one that waits at the tail while the first writes."""
        return self.clients[f"{who} watcher"]

    # Frames

    def ours(
        self, name: str, *, streaming: bool = False, columns: str = "event,segment_id,offset", **options: Any
    ) -> Any:
        reader = self.spark.readStream if streaming else self.spark.read
        reader = reader.format("penstock").option("controller", self.address).option("columns", columns)
        if streaming:
            reader = reader.option("start_stream_cut", "earliest")
        return reader.options(**options).load(f"bench/{name}")

    def theirs(self, name: str, *, streaming: bool = False, **options: Any) -> Any:
        reader = self.spark.readStream if streaming else self.spark.read
        reader = reader.format("kafka").option("kafka.bootstrap.servers", self.kafka).option("subscribe", name)
        return reader.option("startingOffsets", "earliest").options(**options).load()

    def into_ours(self, writer: Any, name: str) -> Any:
        return writer.format("penstock").option("controller", self.address).option("path", f"bench/{name}")

    def into_theirs(self, writer: Any, name: str) -> Any:
        return writer.format("kafka").option("kafka.bootstrap.servers", self.kafka).option("topic", name)

    def parquet_of(self, name: str, count: int) -> str:
        """The rows of a stream as uncompressed Parquet, written once."""
        if name not in self.parquet:
            path = str(self.directory / f"parquet-{name}")
            self.ours(name).write.mode("overwrite").option("compression", "none").parquet(path)
            found = self.spark.read.parquet(path).count()
            if found != count:
                raise RuntimeError(f"stream was not read whole. stream={name} wanted={count} got={found}")
            self.parquet[name] = path
        return self.parquet[name]

    def checkpoint(self, name: str) -> str:
        """A directory that is not there yet."""
        path = self.directory / "checkpoints" / name
        shutil.rmtree(path, ignore_errors=True)
        return str(path)


def scan(frame: Any) -> float:
    """Seconds to read all of a frame."""
    return seconds(lambda: frame.write.format("noop").mode("overwrite").save())


def beside(
    name: str, work: str, unit: str, ours: list[float], others: dict[str, list[float]], wanted: dict[str, str]
) -> list[Row]:
    """Ours once for each yardstick, with its ratio and target, then the yardsticks themselves."""
    rows: list[Row] = []
    theirs = [figure(name, f"{work}: {who}", unit, values) for who, values in others.items() if values]
    for who, made in zip([who for who, values in others.items() if values], theirs, strict=True):
        rows.append(figure(name, work, unit, ours, limit=(who, made.median), target=wanted.get(who, "")))
    return [*(rows or [figure(name, work, unit, ours)]), *theirs]


class InBackground:
    """Work of another process while we measure; its failure is ours."""

    def __init__(self, client: ClientProcess, do: str, **given: Any) -> None:
        self._failed: list[WorkError] = []
        self.result: Any = None

        def go() -> None:
            try:
                self.result = client.ask(do, limit_s=90, **given)
            except WorkError as error:
                self._failed.append(error)

        self._thread = threading.Thread(target=go, daemon=True)
        self._thread.start()

    def wait(self, limit_s: float) -> None:
        self._thread.join(limit_s)
        if self._failed:
            raise self._failed[0]
        if self._thread.is_alive():
            raise WorkError(f"not done after {limit_s:.0f} s")


def session(directory: Path, name: str = "bench") -> Any:
    from pyspark.sql import SparkSession

    from penstock.spark.java import ensure_java
    from penstock.spark.session import configure

    ensure_java(Path(sys.prefix) / "java")
    builder = configure(SparkSession.builder.master("local[2]").appName(name))
    builder = builder.config("spark.ui.enabled", "false").config("spark.local.dir", str(directory / "tmp"))
    builder = builder.config("spark.driver.extraJavaOptions", f"-Dderby.system.home={directory}")
    try:
        jars = sorted(str(path) for path in (servers.require("spark-kafka") / "jars").glob("*.jar"))
        builder = builder.config("spark.jars", ",".join(jars))
    except AbsentError:
        pass  # what reads Kafka says so
    spark = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


@contextmanager
def open_world(directory: Path, runs: int, scale: float, budget_s: float) -> Iterator[World]:
    """All of it, and an end to all of it however the measuring ends."""
    _compiled()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    world = World(directory=directory, runs=runs, scale=scale, deadline=time.monotonic() + budget_s)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        _open_kafka(world, stack)
        server = stack.enter_context(ServerProcess(directory / "store"))
        world.address = server.address
        log = directory / "client.log"
        for who in ("ours", "ours watcher"):
            world.clients[who] = ClientProcess(sys.executable, "penstock_client", [server.address, "write"], log)
            stack.callback(world.clients[who].close)
        # Behind the other processes: a process that has begun to speak gRPC is not to be forked.
        world.store = stack.enter_context(penstock.connect(server.address))
        world.store.create_scope("bench")
        world.spark = session(directory)
        stack.callback(world.spark.stop)
        yield world


def _compiled() -> None:
    """Byte code, as an installed package has it: of a checkout, each of Spark's processes may have to make its own."""
    for name in ("penstock", "pyspark_penstock"):
        compileall.compile_dir(Path(penstock.__file__).parents[1] / name, quiet=2)


def _open_kafka(world: World, stack: ExitStack) -> None:
    """A broker with its own defaults, which acknowledge from the page cache, and a client."""
    broker = servers.Kafka(directory=world.directory / "kafka")
    try:
        servers.require("spark-kafka")
        python = servers.clients_python()
        broker.prepare()
    except AbsentError as error:
        world.no_kafka = str(error)
        return
    stack.callback(broker.stop)
    broker.launch()
    broker.wait()
    log = world.directory / "kafka-client.log"
    for who in ("kafka", "kafka watcher"):
        world.clients[who] = ClientProcess(python, "kafka_client", [broker.address, "default"], log)
        stack.callback(world.clients[who].close)
    client = world.clients["kafka"]
    for _ in range(50):
        try:
            client.ask("first")
            break
        except WorkError as error:
            world.no_kafka = str(error)
    else:
        return
    world.kafka = broker.address
