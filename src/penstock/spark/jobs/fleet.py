"""Retention dry run for very many streams: what a policy, or a change of it, would free, and which subscribers lose
data.

The planner decides row by row. Nothing is changed anywhere. Source: docs/how-to/fleet.md, docs/formats/fleet.md.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.model.errors import AlreadyExistsError, InvalidArgumentError
from penstock.model.retention import PolicyDocument
from penstock.spark.fleet import sources as places
from penstock.spark.fleet.changes import PolicyEdit, edit_of
from penstock.spark.fleet.report import FleetReport, collected
from penstock.spark.fleet.sources import Share
from penstock.spark.fleet.store import StoreFacts, StoreShare, store_shares
from penstock.spark.jobs.job_files import locked
from penstock.spark.jobs.progress import ProgressCallback, ignore_progress, repeat_in_background, task_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DECISIONS = "decisions"
REPORT = "report.json"
_LOCK = ".lock"
HURT_MAX = 1000  # subscribers per list of a report
_PROGRESS_S = 1.0


def fleet(
    spark: SparkSession,
    facts: str | Path | Sequence[str | Path] | StoreFacts,
    change: PolicyEdit | PolicyDocument | Mapping[str, Any] | None = None,
    *,
    at_ms: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    on_progress: ProgressCallback = ignore_progress,
    screen: bool = True,
) -> FleetReport:
    """Decide one retention cycle of every stream, under the policies in force and, if given, under a change of them.

    Args:
        facts: Files or directories of facts, as JSON Lines (docs/formats/planner.md) or Parquet (docs/formats/fleet.md). All
            executors must see them, and ``out``, under the same names. Or ``StoreFacts`` for all streams of a running
            store: tasks then request the same facts that its own retention loop uses.
        change: Fields that are set in the policy of each stream. A document changes only the fields that it names.
        at_ms: The time to decide for, milliseconds since the Unix epoch. The time of the facts, if that is later or if None.
        out: Directory for the decisions (``decisions/``, Parquet, one row per stream) and the report (``report.json``,
            written last).
        overwrite: Whether to replace existing decisions.
        on_progress: Called from a separate thread while tasks run.
        screen: False calls the planner for every single stream. The result is the same but takes longer.
    Returns:
        The report. It lists rows that could not be used by file and line; the others are decided.
    Raises:
        InvalidArgumentError (no facts, or a change that contradicts itself), VersionTooNewError, CorruptDataError (a table
        of facts), AlreadyExistsError (``out`` holds decisions), DirectoryInUseError (another run writes to ``out``),
        UnavailableError (the store). If a task fails, Spark's error; ``penstock.spark.reasons`` finds the cause in it.
    """
    edit = None if change is None else edit_of(change)
    files = [] if isinstance(facts, StoreFacts) else places.find([facts] if isinstance(facts, str | Path) else facts)
    started = time.perf_counter()
    shares: Sequence[Share | StoreShare] = (
        store_shares(facts) if isinstance(facts, StoreFacts) else places.shares(files)
    )
    # Prepare the directory only after the facts have been read, because this can delete existing files.
    with nullcontext() if out is None else held(Path(out)):
        target = None if out is None else prepared(Path(out), overwrite=overwrite)
        found = summed(_sums(spark, shares, edit=edit, at_ms=at_ms, out=target, screen=screen), spark, on_progress)
        report = FleetReport(
            files=len(files),
            streams=found["today"].total.streams,
            reached=found["reached"],
            refused=found["refused"],
            failed=found["failed"],
            errors=found["errors"],
            today=found["today"],
            change=None if edit is None else found["change"],
            sentence="" if edit is None else edit.in_words(),
            out=None if out is None else str(out),
            seconds=time.perf_counter() - started,
            subscribers=found["subscribers"],
            subscribers_total=found["subscribers_total"],
        )
        if out is not None:
            write_report(report, Path(out))
    return report


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Make the directory, and keep other runs away from it. Raises DirectoryInUseError, InvalidArgumentError."""
    if out.exists() and not out.is_dir():
        raise InvalidArgumentError("a file exists in place of the directory", out=str(out))
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / _LOCK, "another run writes its decisions here", out=str(out)):
        yield


def prepared(out: Path, *, overwrite: bool) -> Path:
    """The directory of decisions below ``out``, empty. The files of a run without a report are deleted.

    Raises: AlreadyExistsError.
    """
    target = out.absolute() / DECISIONS
    if target.exists():
        if not overwrite and ((out / REPORT).exists() or not _is_left(target)):
            raise AlreadyExistsError(
                "the directory already has decisions; name another, or overwrite them", out=str(out)
            )
        (out / REPORT).unlink(missing_ok=True)
        shutil.rmtree(target)
    target.mkdir(parents=True)
    return target


def _is_left(target: Path) -> bool:
    """Whether the directory holds only files that a run of this job writes."""
    return target.is_dir() and all(
        path.name.lstrip(".").startswith("part-") and ".parquet" in path.name for path in target.iterdir()
    )


def write_report(report: FleetReport, out: Path) -> None:
    """Write the report next to the decisions, atomically. Call it after they are complete."""
    draft = out / f".{REPORT}"
    draft.write_text(json.dumps(report.as_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(out / REPORT)


def _sums(
    spark: SparkSession,
    shares: Sequence[Share | StoreShare],
    *,
    edit: PolicyEdit | None,
    at_ms: int | None,
    out: Path | None,
    screen: bool,
) -> DataFrame:
    """The sums of all shares, added up. The computation begins when they are read."""
    from pyspark.sql import functions as fn
    from pyspark.sql.pandas.types import from_arrow_schema

    from penstock.spark.fleet.tally import KEYS, SCHEMA, SUMS
    from penstock.spark.fleet.work import Task

    task = Task(edit=edit, at_ms=at_ms, out=None if out is None else str(out), screen=screen)
    known = tuple(shares)

    def decide_shares(batches: Iterator[Any]) -> Iterator[Any]:
        from penstock.spark.fleet.work import run

        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield run(task, known[number], number)

    parts = spark.range(0, len(known), 1, max(1, len(known))).mapInArrow(decide_shares, from_arrow_schema(SCHEMA))
    return parts.groupBy(*KEYS).agg(*[fn.sum(name).alias(name) for name in SUMS])


def summed(sums: DataFrame, spark: SparkSession, on_progress: ProgressCallback) -> Mapping[str, Any]:
    """The parts of a report. Lists the ``HURT_MAX`` subscribers that lose most and the ``HURT_MAX`` that hold most."""
    from pyspark.sql import functions as fn

    with repeat_in_background(task_progress(spark, on_progress, "shares decided"), every_s=_PROGRESS_S):
        sums = sums.persist()
        try:
            few = sums.where(~fn.col("kind").isin("subscriber", "holder")).toArrow().to_pylist()
            hurt = sums.where(fn.col("kind") == "subscriber").orderBy(fn.desc("lost_bytes")).limit(HURT_MAX)
            most = fn.desc("held_bytes"), fn.desc("bytes"), "name", "text"
            holders = sums.where(fn.col("kind") == "holder").orderBy(*most).limit(HURT_MAX)
            return collected([*few, *hurt.toArrow().to_pylist(), *holders.toArrow().to_pylist()])
        finally:
            sums.unpersist()
