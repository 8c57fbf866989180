"""Jars of engines: pinned, fetched from Maven Central or a mirror by Ivy, and refused if they are other ones."""

from __future__ import annotations

import hashlib
import re
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import cluster_engines
import jars

pytestmark = pytest.mark.server
JAR = b"the bytes of a jar"
SHA256 = hashlib.sha256(JAR).hexdigest()
MIRROR = """<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>
  <mirror><id>blocker</id><mirrorOf>external:http:*</mirrorOf><url>http://blocked/</url></mirror>
  <mirror><id>ours</id><mirrorOf>{of}</mirrorOf><url> https://ours/m2 </url></mirror>
</mirrors></settings>"""


def test_each_jar_of_the_engines_is_pinned_once() -> None:
    text = jars.PINNED.read_text()
    found = jars.parse_pinned(text.splitlines())
    assert {one.engine for one in found} == set(cluster_engines.ENGINES)
    assert [one.line for one in found] == text.splitlines()[1:]
    assert len({(one.engine, one.file) for one in found}) == len(found)
    assert all(re.fullmatch("[0-9a-f]{64}", one.sha256) for one in found)
    for engine, coordinates in cluster_engines.ENGINES.items():
        listed = {f"{one.group}:{one.artifact}:{one.version}" for one in found if one.engine == engine}
        assert set(coordinates) <= listed


@pytest.mark.parametrize("of", ["central", "*", "external:*", "other, central"])
def test_a_mirror_of_central_in_mavens_settings_is_used(of: str) -> None:
    assert jars.mirror_of_central(MIRROR.format(of=of)) == "https://ours/m2"


@pytest.mark.parametrize("of", ["other", "*,!central"])
def test_a_mirror_of_something_else_is_not_used(of: str) -> None:
    assert jars.mirror_of_central(MIRROR.format(of=of)) is None


def test_the_setting_comes_before_mavens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert jars.mirror() is None
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(MIRROR.format(of="central"))
    assert jars.mirror() == "https://ours/m2"
    monkeypatch.setenv("PENSTOCK_MAVEN_MIRROR", "https://chosen/")
    assert jars.mirror() == "https://chosen/"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A mirror with two files of one module."""
    pytest.importorskip("pyspark")
    place = tmp_path / "mirror" / "org" / "example" / "engine" / "1.0"
    place.mkdir(parents=True)
    for name in ("engine-1.0.jar", "engine-1.0-linux.jar"):
        (place / name).write_bytes(JAR)

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args, **named):
            super().__init__(*args, directory=str(tmp_path / "mirror"), **named)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("PENSTOCK_MAVEN_MIRROR", f"http://127.0.0.1:{server.server_port}/")
        yield
        server.shutdown()
        thread.join()


def pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> Path:
    """Pin these jars, and return the directory for them."""
    (tmp_path / "jars.txt").write_text("# pinned\n" + "".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(jars, "PINNED", tmp_path / "jars.txt")
    (tmp_path / "to").mkdir()
    return tmp_path / "to" / "engine"


def test_jars_with_their_checksums_are_fetched(repository: None, tmp_path, monkeypatch) -> None:
    to = pin(
        tmp_path,
        monkeypatch,
        f"engine org.example:engine:1.0 {SHA256}",
        f"engine org.example:engine:1.0:linux {SHA256}",
        f"another org.example:absent:1.0 {SHA256}",
    )
    jars.fetch_pinned("engine", to)
    assert {one.name: one.read_bytes() for one in to.iterdir()} == {
        "engine-1.0.jar": JAR,
        "engine-1.0-linux.jar": JAR,
    }
    assert list(to.parent.iterdir()) == [to], "nothing else is left"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"engine org.example:engine:1.0 {'0' * 64}", "engine-1.0.jar is not the pinned one"),
        (f"engine org.example:engine:2.0 {SHA256}", "cannot be had"),
    ],
)
def test_other_or_absent_jars_leave_nothing(repository: None, tmp_path, monkeypatch, line: str, reason: str) -> None:
    to = pin(tmp_path, monkeypatch, line)
    with pytest.raises(jars.JarsError, match=reason):
        jars.fetch_pinned("engine", to)
    assert not list(to.parent.iterdir())


def test_tests_are_skipped_with_the_reason_why_the_jars_are_not_there(tmp_path, monkeypatch) -> None:
    def refuse(engine: str, to: Path) -> None:
        raise jars.JarsError("the host was not found")

    monkeypatch.setattr(cluster_engines, "HOME", tmp_path)
    monkeypatch.setattr(cluster_engines, "FAILED", tmp_path / "failed.txt")
    monkeypatch.setattr(cluster_engines, "fetch_pinned", refuse)
    with pytest.raises(cluster_engines.EngineError, match="the host was not found"):
        cluster_engines.fetch()
    reason = cluster_engines.missing()
    assert reason is not None
    assert "the host was not found" in reason
    monkeypatch.setattr(cluster_engines, "fetch_pinned", lambda engine, to: to.mkdir())
    cluster_engines.fetch()
    assert cluster_engines.missing() is None
