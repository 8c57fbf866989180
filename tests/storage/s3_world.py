"""Real S3 servers on loopback, started by the tests that need them."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, ClassVar
from uuid import uuid4

import obstore
import pytest
from obstore import sign
from obstore.store import S3Store

from penstock.ports.objects import Objects
from penstock.storage.objects.cloud_objects import BucketObjects, ObjectSettings
from penstock.testing.server import free_ports

BUILT = Path(__file__).parents[2] / "build" / "s3"
SERVERS = ("swift", "versitygw")
USER, KEY = "test:penstock", "loopback-only"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": KEY, "AWS_REGION": "us-east-1"}
START_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A server that answers at ``endpoint`` and knows ``CREDENTIALS``, which are in the environment while it runs. With
    ``stranger`` in the environment, it refuses."""

    name: str
    endpoint: str
    stranger: ClassVar = {"AWS_SECRET_ACCESS_KEY": "bad-secret"}

    def new_bucket(self) -> str:
        """Make a bucket by a request of the protocol; returns its URL."""
        bucket = f"penstock-{uuid4().hex[:12]}"
        store = S3Store(bucket, endpoint=self.endpoint, client_options={"allow_http": True})
        url = sign(store, "PUT", "", timedelta(minutes=1))
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=20) as answer:
            assert answer.status == 200
        return f"s3://{bucket}"

    def objects(self, url: str, settings: ObjectSettings | None = None) -> Objects:
        return BucketObjects(url, endpoint=self.endpoint, settings=settings)

    def options(self, url: str) -> tuple[str, ...]:
        """Options of a server that has its tier 2 there."""
        return ("--tier2", url, "--s3-endpoint", self.endpoint)

    def place(self, url: str) -> Mapping[str, Any]:
        """Settings of an embedded store that has its tier 2 there."""
        return {"tier2": url, "tier2_endpoint": self.endpoint}


def contents(server: S3Server, url: str) -> dict[str, bytes]:
    """Every object of a bucket, read by a client of its own, not by the store's."""
    store = S3Store(url.removeprefix("s3://"), endpoint=server.endpoint, client_options={"allow_http": True})
    found = {}
    for name in [item["path"] for page in obstore.list(store) for item in page]:
        # The store goes on deleting, and a list may lag.
        with suppress(FileNotFoundError):
            found[name] = bytes(obstore.get(store, name).bytes())
    return found


@contextmanager
def running(name: str, home: Path) -> Iterator[S3Server]:
    """The server of that name, with its data below ``home``. Skips where it is not installed."""
    before = {key: os.environ.get(key) for key in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    try:
        with _fast(home) as place, _swift(place) if name == "swift" else _gateway(place) as port:
            yield S3Server(name=name, endpoint=f"http://127.0.0.1:{port}")
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})


@contextmanager
def _fast(home: Path) -> Iterator[Path]:
    """A directory in memory where that has extended attributes, for these servers sync a lot; else ``home``."""
    with ExitStack() as stack:
        try:
            memory = Path(stack.enter_context(TemporaryDirectory(dir="/dev/shm", prefix="penstock-s3-")))
            os.setxattr(memory, "user.penstock", b"x")
            home = memory
        except OSError:
            pass  # No such place, or an older kernel: the disk will do.
        yield home


@contextmanager
def _swift(home: Path) -> Iterator[int]:
    python = BUILT / "swift" / "bin" / "python"
    if not (BUILT / "swift" / ".ready").exists():
        pytest.skip("OpenStack Swift is installed by: make setup-s3")
    try:
        os.setxattr(home, "user.penstock", b"x")
    except OSError as error:
        pytest.skip(f"OpenStack Swift needs extended attributes, not to be had in {home}: {error}")
    script = Path(__file__).with_name("swift_process.py")
    with (home / "swift.log").open("wb") as log:
        process = subprocess.Popen(
            [str(python), "-W", "ignore", str(script), str(home / "swift"), USER, KEY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    with _ended(process):
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        line = process.stdout.readline() if ready else b""
        assert line, f"Swift did not start: {(home / 'swift.log').read_text()[-2000:]}"
        yield json.loads(line)["port"]


@contextmanager
def _gateway(home: Path) -> Iterator[int]:
    binary = BUILT / "bin" / "versitygw"
    if not binary.exists():
        pytest.skip("Versity's S3 gateway is built by: make test-s3")
    (data := home / "gateway").mkdir()
    (port,) = free_ports(1)
    with (home / "gateway.log").open("wb") as log:
        process = subprocess.Popen(
            [str(binary), "--port", f"127.0.0.1:{port}", "--access", USER, "--secret", KEY, "posix", str(data)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    with _ended(process):
        deadline = monotonic() + START_S
        while not _answers(port):
            assert monotonic() < deadline, "the gateway does not answer"
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
                pytest.fail(f"the gateway did not start: {(home / 'gateway.log').read_text()[-2000:]}")
        yield port


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait(10)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
