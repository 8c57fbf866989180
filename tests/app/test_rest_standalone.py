"""The HTTP port of a real ``penstock standalone``: open when the process serves, and a door to the same store."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.model.errors import InvalidArgumentError
from penstock.testing.server import ServerProcess


def ask(port: int, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"content-type": "application/json"} | headers)
        response = connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if content else None
    finally:
        connection.close()


@pytest.mark.server
def test_what_is_made_over_http_is_used_over_the_wire_and_survives_a_kill(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        port = server.http_port
        assert ask(port, "GET", "/ping")[0] == 200
        assert ask(port, "POST", "/v1/scopes", {"scopeName": "s"})[0] == 201
        body = {
            "streamName": "t",
            "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2},
            "streamTags": ["x"],
        }
        status, made = ask(port, "POST", "/v1/scopes/s/streams", body)
        assert status == 201
        with penstock.connect(server.address) as store:
            stream = store.stream("s/t")
            with stream.writer() as writer:
                writer.write_many([b"a", b"b"])
            group = store.reader_group("s/g", ["s/t"])
            with group.reader("r1") as reader:
                assert reader.read() is not None
                status, shown = ask(port, "GET", "/v1/scopes/s/readergroups/g")
                assert (status, shown["streamList"], shown["onlineReaderIds"]) == (200, ["t"], ["r1"])
        health = ask(port, "GET", "/v1/health")[1]
        assert health["status"] == "UP"
        assert set(health["children"]) == {"segmentstore", "appends", "reads", "tiering", "disk"}
        server.kill()
        server.start()
        assert ask(server.http_port, "GET", "/v1/scopes/s/streams/t") == (200, made)
        assert ask(server.http_port, "GET", "/v1/scopes", host="evil.example")[0] == 403
        assert server.stop() == 0


@pytest.mark.server
def test_readers_continue_where_pulsars_admin_calls_have_moved_a_subscription(tmp_path: Path) -> None:
    topic = "/admin/v2/persistent/public/default/t"
    with ServerProcess(tmp_path / "data") as server:
        port = server.http_port
        # By Pulsar's defaults, what all subscriptions have acknowledged is deleted.
        keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        assert ask(port, "POST", "/admin/v2/namespaces/public/default/retention", keep)[0] == 204
        assert ask(port, "PUT", topic)[0] == 204
        assert ask(port, "PUT", f"{topic}/subscription/sub", "earliest")[0] == 204
        with penstock.connect(server.address) as store, store.stream("public.default/t").writer() as writer:
            writer.write_many([b"%d" % number for number in range(5)])
            writer.flush()
            group = store.open_reader_group("public.default/sub")
            for path, expected in (("skip/2", b"2"), ("resetcursor/0", b"0")):
                assert ask(port, "POST", f"{topic}/subscription/sub/{path}")[0] == 204
                with group.reader("r") as reader:
                    event = reader.read(timeout_s=20)
                    assert event is not None
                    assert event.data == expected
        assert server.stop() == 0


@pytest.mark.server
def test_a_taken_http_port_is_named_and_the_process_ends(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["standalone", "--data", str(tmp_path / "data"), "--http-port", str(port)]
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words, "--controller-port", "0", "--store-port", "0"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode != 0
    assert "HTTP address is taken" in done.stderr
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_say_by_which_names_the_port_may_be_addressed(tmp_path: Path) -> None:
    store = EmbeddedSettings(data=tmp_path)
    assert StandaloneSettings(store=store).http_port == 9091
    assert StandaloneSettings(store=store, advertised_host="store.lan").http_names == ("store.lan",)
    assert StandaloneSettings(store=store, host="0.0.0.0", insecure=True).http_names is None
    with pytest.raises(InvalidArgumentError):
        StandaloneSettings(store=store, http_port=1 << 16)
    with pytest.raises(InvalidArgumentError):
        StandaloneSettings(store=store, host="0.0.0.0")
