"""A real HDFS on loopback beside the real S3 servers, for tests that hold for all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from hdfs_native import Client

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import hdfs_engine
from hdfs_engine import Hdfs

from penstock.ports.objects import Objects
from penstock.storage.objects.hdfs_objects import HdfsObjects
from tests.storage import s3_world
from tests.storage.s3_world import S3Server

HDFS = pytest.param("hdfs", marks=pytest.mark.hdfs)
ALL_SERVERS = (*s3_world.SERVERS, HDFS)


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsServer:
    """A namenode and two datanodes. Has what the tests need of ``S3Server``."""

    engine: Hdfs
    home: Path
    name: str = "hdfs"
    stranger: ClassVar = {"HADOOP_USER_NAME": "nobody"}

    def new_bucket(self) -> str:
        """The URL of a directory that does not exist yet."""
        return f"{self.engine.url}/penstock-{uuid4().hex[:12]}"

    def objects(self, url: str, settings: object = None) -> Objects:
        return HdfsObjects(url)

    def options(self, url: str) -> tuple[str, ...]:
        return ("--tier2", url)

    def place(self, url: str) -> Mapping[str, Any]:
        return {"tier2": url}


TierServer = S3Server | HdfsServer


def all_contents(server: TierServer, url: str) -> dict[str, bytes]:
    """Every object of the place, and for HDFS unfinished ones too. Read by another client than the store's."""
    if isinstance(server, S3Server):
        return s3_world.contents(server, url)
    client = Client(server.engine.url)
    root = url.removeprefix(server.engine.url)
    found = {}
    with suppress(FileNotFoundError):
        for item in client.list_status(root, True):
            if not item.isdir:
                with suppress(FileNotFoundError):
                    found[item.path] = client.read(item.path).read()
    return found


def blocks_with(server: HdfsServer, needle: bytes) -> list[str]:
    """Files of blocks on the disks of all datanodes."""
    found = []
    for path in server.home.glob("datanode-*/data/**/blk_*"):
        with suppress(FileNotFoundError):
            if path.suffix != ".meta" and needle in path.read_bytes():
                found.append(str(path))
    return found


@contextmanager
def hdfs_running(home: Path, **settings: Any) -> Iterator[HdfsServer]:
    """Skips where HDFS is not set up."""
    reason = hdfs_engine.missing()
    if reason is not None:
        pytest.skip(reason)
    with Hdfs(home, **settings) as engine:
        yield HdfsServer(engine=engine, home=home)


@contextmanager
def tier_running(name: str, home: Path) -> Iterator[TierServer]:
    with hdfs_running(home) if name == "hdfs" else s3_world.running(name, home) as found:
        yield found
