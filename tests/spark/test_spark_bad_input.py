"""What is wrong with a call reaches who made it as one line with the cause: through source, sink, jobs and commands."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from job_world import source_options
from py4j.protocol import Py4JError
from spark_world import World, keyed

from penstock.app.cli.main import main
from penstock.model.errors import PenstockError
from penstock.model.names import StreamName
from penstock.spark import connect
from penstock.spark.cli import erase as erase_command
from penstock.spark.cli import export as export_command
from penstock.spark.cli import load as load_command
from penstock.spark.cli import scrub as scrub_command
from penstock.spark.cli import table as table_command
from penstock.spark.cli.session import one_line_errors, typed
from penstock.spark.connect import Services
from penstock.spark.reasons import reason
from penstock.testing.server import free_ports

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def stream(world: World) -> StreamName:
    found = world.create("good", 1)
    world.write(found, keyed(0, 100))
    return found


def one_line(call: Callable[[], object], *words: str) -> None:
    """The call fails for us, and its reason is one line that has these words."""
    with pytest.raises(Exception) as caught:
        call()
    line = reason(caught.value)
    assert line is not None, str(caught.value)[-2000:]
    assert "\n" not in line
    for word in words:
        assert word in line
    error = typed(caught.value)
    assert type(error).__name__ == line.partition(":")[0]


READS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "no such stream": ({"stream": "none"}, ("StreamNotFoundError", "none")),
    "no such scope": ({"scope": "none"}, ("NotFoundError", "none")),
    "an invalid name": ({"stream": "a b"}, ("InvalidNameError", "option stream")),
    "an unknown option": ({"maxBytes": "1"}, ("InvalidArgumentError", "no such option")),
    "an invalid size": ({"target_partition_bytes": "much"}, ("InvalidArgumentError", "target_partition_bytes")),
    "an invalid flag": ({"direct": "perhaps"}, ("InvalidArgumentError", "direct")),
    "an unknown column": ({"columns": "event,colour"}, ("InvalidArgumentError", "colour")),
    "an invalid cut": ({"start_stream_cut": "yesterday"}, ("InvalidCutError", "yesterday")),
    "a batch that would subscribe": ({"subscriber": "me"}, ("InvalidArgumentError", "readStream")),
}


@pytest.mark.parametrize(
    "name", [name if place < 2 else pytest.param(name, marks=pytest.mark.slow) for place, name in enumerate(READS)]
)
def test_a_read_that_cannot_be_says_why(spark: Any, address: str, stream: StreamName, name: str) -> None:
    options, words = READS[name]
    given = source_options(address, stream) | options
    one_line(lambda: spark.read.format("penstock").options(**given).load().collect(), *words)


def test_a_schema_that_does_not_fit_says_which_column(spark: Any, address: str, stream: StreamName) -> None:
    for schema, word in (("event string", "event"), ("event binary, moment timestamp", "moment")):
        reader = spark.read.format("penstock").options(**source_options(address, stream)).schema(schema)
        one_line(lambda reader=reader: reader.load().collect(), "InvalidArgumentError", word)


WRITES: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "no event": ("id as number", {}, ("InvalidArgumentError", "column of type binary or string")),
    "an event of a wrong type": ("id as event", {}, ("InvalidArgumentError", "event")),
    "a key of a wrong type": (
        "'x' as event, id as routing_key",
        {},
        ("InvalidArgumentError", "routing keys must be strings"),
    ),
    "a column too many": ("'x' as event, id as extra", {}, ("InvalidArgumentError", "extra")),
    "a null": ("if(id = 7, null, 'x') as event", {}, ("InvalidArgumentError", "null")),
    "a version alone": ("'x' as event", {"txnVersion": "1"}, ("InvalidArgumentError", "txnAppId")),
    "a lease too long": (
        "'x' as event",
        {"transaction_timeout_ms": "1"},
        ("InvalidArgumentError", "transaction_timeout_ms"),
    ),
    "no stream": ("'x' as event", {"stream": "none", "allow_create_stream": "false"}, ("StreamNotFoundError", "none")),
}


@pytest.mark.parametrize(
    "name", [name if place < 2 else pytest.param(name, marks=pytest.mark.slow) for place, name in enumerate(WRITES)]
)
def test_a_write_that_cannot_be_says_why(spark: Any, address: str, world: World, stream: StreamName, name: str) -> None:
    columns, options, words = WRITES[name]
    given = source_options(address, stream) | options
    frame = (
        spark.range(10).selectExpr(*columns.split(", "))
        if "if(" not in columns
        else spark.range(10).selectExpr(columns)
    )
    before = world.tail(stream)
    one_line(lambda: frame.write.format("penstock").options(**given).mode("append").save(), *words)
    assert world.tail(stream) == before


@pytest.mark.slow
def test_a_sealed_stream_and_one_that_was_made_anew_say_so(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create("anew", 1)
    world.write(stream, keyed(0, 50))
    given = source_options(address, stream)
    old = world.tail(stream)
    query = _counting(spark, given, tmp_path / "checkpoint")
    assert query.awaitTermination(120)

    async def seal(services: Services) -> None:
        await services.controller.streams.seal(stream)

    async def make_anew(services: Services) -> None:
        await services.controller.streams.delete(stream)

    world.link.run(seal)
    frame = spark.range(3).selectExpr("'x' as event")
    one_line(lambda: frame.write.format("penstock").options(**given).mode("append").save(), "StreamSealedError")
    world.link.run(make_anew)
    one_line(lambda: spark.read.format("penstock").options(**given).load().collect(), "StreamNotFoundError", "anew")
    world.create("anew", 1)
    world.write(stream, keyed(0, 5))
    cut = given | {"start_stream_cut": old.to_text()}
    one_line(lambda: spark.read.format("penstock").options(**cut).load().collect(), "segment")
    one_line(lambda: _counting(spark, given, tmp_path / "checkpoint").awaitTermination(120), "segment")


def _counting(spark: Any, given: dict[str, str], checkpoint: Path) -> Any:
    events = spark.readStream.format("penstock").options(start_stream_cut="earliest", **given).load()
    writer = events.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


@pytest.mark.slow
def test_a_checkpoint_of_another_stream_is_refused(
    spark: Any, address: str, world: World, stream: StreamName, tmp_path: Path
) -> None:
    other = world.create("another", 1)
    world.write(other, keyed(0, 5))
    assert _counting(spark, source_options(address, other), tmp_path / "c").awaitTermination(120)
    one_line(
        lambda: _counting(spark, source_options(address, stream), tmp_path / "c").awaitTermination(120),
        "InvalidCutError",
        "another stream",
    )


@pytest.fixture
def command(
    spark: Any, address: str, stream: StreamName, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """``penstock spark …`` in this process and in the session that is there: its status, output and errors."""

    @contextmanager
    def here(name: str, **_: object) -> Iterator[Any]:
        with one_line_errors():
            yield spark

    for module in (erase_command, export_command, load_command, scrub_command, table_command):
        monkeypatch.setattr(module, "spark_session", here)
    monkeypatch.setenv("PENSTOCK_CONTROLLER", address)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", "spark", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, errors = capfd.readouterr()
        return int(ended.value.code or 0), out, errors

    return run


def said(errors: str) -> str:
    """The line of the error; there is no other, and no stack."""
    # Typer sets what it says itself off by two lines on usage.
    lines = [line for line in errors.splitlines() if line.strip() and not line.startswith(("Usage: ", "Try '"))]
    assert "Traceback" not in errors
    assert len(lines) == 1, errors
    return lines[0]


def test_what_java_says_is_told_and_not_which_call_said_it() -> None:
    with pytest.raises(PenstockError, match=r"^Spark: no footer$"), one_line_errors():
        raise Py4JError("An error occurred while calling o44.load.\n: java.io.IOException: no footer\n\tat org.apache")


@pytest.mark.slow
def test_commands_say_in_one_line_what_is_wrong(
    command: Callable[..., tuple[int, str, str]], stream: StreamName, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("x\n1\n")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    cases: list[tuple[tuple[object, ...], int, str]] = [
        (("load", stream, tmp_path / "none.parquet"), 3, "there is no such input"),
        (("load", stream, tmp_path / "in.csv", "--order-by", "x"), 2, "order is kept for each routing key"),
        (("load", stream, tmp_path / "in.csv", "--event", "colour"), 2, "colour"),
        (("load", stream, tmp_path / "in.csv", "--event", "x +"), 2, "Spark:"),
        (("load", stream, tmp_path / "in.csv", "--event", "if(x = '1', null, x)"), 2, "events contain nulls"),
        (("load", "no-stream", tmp_path / "in.csv"), 2, "write SCOPE/STREAM"),
        (("export", "plant/none", tmp_path / "out"), 3, "none"),
        (("export", stream, tmp_path / "full"), 4, "is not an export"),
        (("export", stream, tmp_path / "in.csv"), 4, "is not an export"),
        (("export", stream, tmp_path / "link"), 4, "is not an export"),
        (("export", stream, "/"), 2, "a directory of its own"),
        (("export", stream, tmp_path / "out", "--option", "subscriber=me"), 2, "--option does not take subscriber"),
        (
            ("export", stream, tmp_path / "out", "--from", "latest", "--option", "startStreamCut=x"),
            2,
            "startStreamCut",
        ),
        (("load", stream, tmp_path / "empty.csv"), 3, "all of its files are empty"),
        (("erase", stream, "--reason", "x", "--json-field", "a..b", "--values-from", tmp_path / "in.csv"), 2, "'a..b'"),
        (("export", stream, tmp_path / "out", "--from", "now"), 2, "text of a stream cut"),
        (("export", stream, tmp_path / "out", "--offsets", "1:2"), 2, "SEGMENT=START:END"),
        (("export", stream, tmp_path / "out", "--since", "later"), 2, "a time must be written"),
        (("export", stream, tmp_path / "out", "--option", "maxBytes=1"), 2, "no such option"),
        (("scrub", "none"), 3, "none"),
        (("scrub", "plant/none"), 3, "none"),
        (("table", stream, tmp_path / "full", "--key-by", "k"), 4, "is not a table"),
        (("table", stream, tmp_path / "t", "--key-by", "colour"), 2, "colour"),
        (("table", stream, tmp_path / "t", "--key-by", "k", "--schema", "k WHAT"), 2, "WHAT"),
    ]
    for arguments, status, words in cases:
        code, out, errors = command(*arguments)
        assert words in said(errors), arguments
        assert (code, out) == (status, ""), (arguments, errors)


@pytest.mark.slow
def test_commands_say_what_they_did(
    command: Callable[..., tuple[int, str, str]], stream: StreamName, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("k,v\n" + "".join(f"k{number % 3},{number}\n" for number in range(30)))
    target = "plant/commanded"
    assert "would write" in command("load", target, tmp_path / "in.csv", "--key-by", "k", "--dry-run")[1]
    assert "30 events" in command("load", target, tmp_path / "in.csv", "--key-by", "k", "--segments", 2)[1]
    assert "1 were loaded before" in command("load", target, tmp_path / "in.csv", "--key-by", "k")[1]
    assert "nothing was written" in command("export", target, tmp_path / "out", "--dry-run")[1]
    assert "30, " in command("export", target, tmp_path / "out")[1]
    assert '"events": 30' in command("export", target, tmp_path / "out", "--json")[1]
    assert "everything is sound" in command("scrub", target)[1]
    table = ("table", target, tmp_path / "t", "--key-by", "k", "--schema", "k STRING, v STRING", "--buckets", 2)
    assert "would read" in command(*table, "--dry-run")[1]
    assert "3 in version 1" in command(*table)[1]


def test_jobs_say_that_a_store_cannot_be_reached(
    command: Callable[..., tuple[int, str, str]], stream: StreamName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "RETRY_S", 0.2)
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    for arguments in (
        ("export", stream, tmp_path / "out"),
        ("scrub", "plant"),
        ("table", stream, tmp_path / "t", "--key-by", "event"),
    ):
        code, _, errors = command(*arguments, "--controller", nowhere)
        assert code == 5
        assert nowhere.rpartition(":")[2] in said(errors)


def test_an_address_where_nobody_listens_is_reported_at_once_by_the_sink(
    spark: Any, address: str, world: World, stream: StreamName, tmp_path: Path
) -> None:
    given = source_options(f"127.0.0.1:{free_ports(1)[0]}", stream)
    frame = spark.range(3).selectExpr("'x' as event")
    rates = spark.readStream.format("rate").load().selectExpr("'x' as event")
    query = rates.writeStream.format("penstock").options(**given, checkpointLocation=str(tmp_path))
    seen = Path(spark.conf.get("spark.local.dir"))
    before = set(seen.glob("blockmgr-*/penstock-*"))
    for call in (
        lambda: frame.write.format("penstock").options(**given).mode("append").save(),
        lambda: query.start().awaitTermination(),
    ):
        began = time.monotonic()
        one_line(call, "NotConnectedError", "nothing listens at this address")
        assert time.monotonic() - began < connect.RETRY_S / 2
    # The processes that Spark starts for the sink share what they know of a first connection, and a failed one is none.
    assert set(seen.glob("blockmgr-*/penstock-*")) == before
    served = source_options(address, world.create("served", 1))
    frame.write.format("penstock").options(**served).mode("append").save()
    after = set(seen.glob("blockmgr-*/penstock-*"))
    assert after
    assert before <= after
    assert len(after - before) <= 1


@pytest.mark.slow
def test_a_command_of_its_own_process_prints_one_line_and_no_stack(
    address: str, stream: StreamName, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("x\n1\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "penstock", "spark", "load", str(stream), str(tmp_path / "in.csv")),
            *("--event", "if(x = '1', null, x)", "--controller", address, "--master", "local[1]"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"SPARK_LOCAL_DIRS": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 2
    # The Java itself says one more, which no setting of Spark keeps from it.
    *noise, line = done.stderr.splitlines()
    assert [said for said in noise if "incubator" not in said] == []
    assert "events contain nulls" in line
    assert "Traceback" not in done.stderr
    assert "\tat " not in done.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "Job aborted due to stage failure: Task 0 failed 1 times (localhost executor driver): PythonException: Traceback "
            'most recent call last\nTraceback (most recent call last):\n  File "a.py", line 1, in x\n    b()\n'
            "OSError: [Errno 28] No space left on device\n\n\tat org.apache.spark.api.python.BasePythonRunner\n",
            "Spark: OSError: [Errno 28] No space left on device",
        ),
        (
            "[TASK_WRITE_FAILED] Task failed while writing rows to file:/x. SQLSTATE: 58030\n\tat a.b(c.scala:1)\n"
            "Caused by: java.io.IOException: No space left on device\n\tat java.base/x\n\t... 17 more\n",
            "Spark: No space left on device",
        ),
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": org.apache.spark.SparkException: Could not parse Master URL: 'nonsense'\n\tat a.b(c.scala:1)\n",
            "Spark: Could not parse Master URL: 'nonsense'",
        ),
        ("[PATH_NOT_FOUND] Path does not exist. SQLSTATE: 42K03", "Spark: [PATH_NOT_FOUND] Path does not exist."),
    ],
)
def test_what_spark_raises_is_told_by_the_line_that_says_why(text: str, line: str) -> None:
    with pytest.raises(PenstockError) as caught, one_line_errors():
        raise Py4JError(text)
    assert str(caught.value) == line


def test_an_error_that_is_not_ours_is_none() -> None:
    assert typed(ValueError("penstock")) is None
    assert typed(PenstockError("x", y=1)) is not None
