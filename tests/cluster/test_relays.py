"""A relay that is cut passes nothing and loses nothing, and only the connections that it names."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.relays import HOST, Relays

SAYS = """
import socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
line.sendall(b"hello")
print(line.recv(5))
"""


@contextmanager
def echoing() -> Iterator[int]:
    """A server that sends back what it gets."""

    def serve(line: socket.socket) -> None:
        with line:
            while data := line.recv(65536):
                line.sendall(data)

    def accept() -> None:
        while True:
            try:
                line, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(line,), daemon=True).start()

    with socket.create_server((HOST, 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def relay_port(directory: Path, name: str, port: int) -> int:
    return dict(json.loads((directory / f"{name}.ports").read_text()))[port]


def test_bytes_of_a_cut_relay_arrive_when_it_is_healed(tmp_path) -> None:
    with echoing() as port, Relays(tmp_path) as relays:
        relays.between("store-1", port)
        relays.between("store-2", port)
        lines = {
            name: socket.create_connection((HOST, relay_port(tmp_path, name, port))) for name in ("store-1", "store-2")
        }
        with lines["store-1"] as cut, lines["store-2"] as whole:
            cut.sendall(b"one")
            assert cut.recv(3) == b"one"
            relays.cut("store-1", [port])
            cut.sendall(b"two")
            whole.sendall(b"two")
            assert whole.recv(3) == b"two"
            cut.settimeout(0.2)
            with pytest.raises(TimeoutError):
                cut.recv(3)
            with socket.create_connection((HOST, relay_port(tmp_path, "store-1", port))) as later:
                later.sendall(b"new")
                relays.heal("store-1", [port])
                for line, wanted in ((cut, b"two"), (later, b"new")):
                    line.settimeout(60)
                    assert line.recv(3) == wanted


def test_an_end_that_closes_ends_the_connection_of_the_other(tmp_path) -> None:
    with socket.create_server((HOST, 0)) as server, Relays(tmp_path) as relays:
        relays.between("store-1", server.getsockname()[1])
        with socket.create_connection(
            (HOST, relay_port(tmp_path, "store-1", server.getsockname()[1])), timeout=60
        ) as line:
            accepted, _ = server.accept()
            accepted.close()
            assert line.recv(1) == b""


def test_a_module_connects_to_the_relay_and_to_no_other_port(tmp_path) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    with echoing() as first, echoing() as second, Relays(tmp_path) as relays:
        relays.between("load", first)
        relays.cut("load", [first])

        def start(port: int) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, "-m", *relays.command("load", "says", str(port))],
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
            )

        cut, whole = start(first), start(second)
        assert whole.communicate(timeout=60)[0] == "b'hello'\n"
        assert cut.poll() is None
        relays.heal("load", [first])
        assert cut.communicate(timeout=60)[0] == "b'hello'\n"
