"""Columns of a table of the lake job: which names it reserves, which times fit, and the latest event of each key."""

from __future__ import annotations

from typing import Any

from penstock.model.errors import InvalidArgumentError
from penstock.spark.jobs.event_time import MICROS_END, MICROS_MIN
from penstock.spark.jobs.lake.task import BAD
from penstock.spark.lake.port import KEY, OFFSET, PERIODS, POSITION, SEGMENT

DELETED = "_penstock_deleted"
"""Whether the event deletes its key; a column that no file has."""


def check_names(names: list[str], *, key: str | None) -> None:
    """Return if a schema may have these columns. Raises InvalidArgumentError."""
    # Spark ignores the case of names.
    reserved = {*POSITION, *PERIODS["hour"], BAD, DELETED, *([] if key is None else [KEY])}
    clash = sorted(name for name in names if name.lower() in reserved)
    if clash and not (clash == [KEY] and key is not None and key.strip() in (KEY, f"`{KEY}`")):
        raise InvalidArgumentError("the table reserves these column names", columns=", ".join(clash))
    if len({name.lower() for name in names}) != len(names):
        raise InvalidArgumentError("the schema has a column twice", columns=", ".join(names))


def check_times(rows: Any, name: str) -> Any:
    """The rows; an event whose time is not in the years 1 to 9999 does not fit the schema, and its time becomes null.

    Spark reads a number of a JSON object as seconds, so milliseconds become such times. No partition can have them.
    """
    from pyspark.sql import functions as fn

    time = fn.col(f"`{name.replace('`', '``')}`")
    micros = fn.unix_micros(time)
    fits = micros.isNull() | ((micros >= MICROS_MIN) & (micros < MICROS_END))
    return rows.withColumn(BAD, fn.col(BAD) | ~fits).withColumn(name, fn.when(fits, time))


def with_keys(rows: Any, key: str, delete_when: str | None) -> Any:
    """The rows with the columns ``key``, null where the event has none, and ``DELETED``. An event with a key that is no
    text does not fit the schema."""
    from pyspark.sql import functions as fn

    deleted = fn.coalesce(fn.expr(delete_when or "false"), fn.lit(False))
    found = fn.expr(key).cast("string")
    # Bytes may be no text. A replacement for such a key could be that of another one.
    is_text = fn.coalesce(fn.is_valid_utf8(found), fn.lit(True))
    rows = rows.withColumn(DELETED, deleted).withColumn(BAD, fn.col(BAD) | ~is_text)
    return rows.withColumn(KEY, fn.when(is_text, found))


def latest_of_keys(rows: Any, *, bad_first: bool) -> Any:
    """The last event of each key. Events without a key are left out.

    ``bad_first``: an event that does not fit the schema is kept in place of the last one, and without a key, too, so that the
    task finds it and fails.

    Segments of a later epoch have higher ids, and their events follow those of earlier segments in every key.
    """
    from pyspark.sql import functions as fn

    has_key = fn.col(KEY).isNotNull()
    named = rows.where(has_key | fn.col(BAD)) if bad_first else rows.where(has_key)
    row = fn.struct(*[fn.col(f"`{name.replace('`', '``')}`") for name in rows.columns if name != KEY])
    order = fn.struct(BAD, SEGMENT, OFFSET) if bad_first else fn.struct(SEGMENT, OFFSET)
    return named.groupBy(KEY).agg(fn.max_by(row, order).alias("_penstock_row")).select(KEY, "_penstock_row.*")
