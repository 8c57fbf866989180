"""Events as rows of a table: the column of bytes, the columns of records, or those of a schema for JSON."""

from __future__ import annotations

from typing import Any

from penstock.spark.jobs.lake.keys import check_names
from penstock.spark.jobs.lake.task import BAD
from penstock.spark.lake.port import POSITION
from penstock.spark.records import KEY, TIMESTAMP, VALUE
from penstock.spark.schema import EVENT, RECORD_COLUMNS


def columns_to_read(*, records: bool) -> tuple[str, ...]:
    """The columns of the source that ``event_rows`` takes."""
    return (*(RECORD_COLUMNS if records else (EVENT,)), *POSITION)


def event_rows(events: Any, schema: str | None, *, key: str | None, records: bool) -> tuple[Any, list[str]]:
    """The rows of events, each with ``BAD``, and the names of the columns that the table has of them.

    ``records``: the JSON is the value of each record, and its key and time are columns too, unless the schema has columns
    of their names. Expressions may also use the other columns of records. A tombstone fits: its columns are null.
    Raises InvalidArgumentError, and Spark's error for a schema that it cannot parse.
    """
    from pyspark.sql import functions as fn
    from pyspark.sql.types import StringType, StructType

    if schema is None:
        return events.withColumn(BAD, fn.lit(False)), [*RECORD_COLUMNS] if records else [EVENT]
    fields = StructType.fromDDL(schema)
    names = fields.fieldNames()
    check_names(names, key=key)
    lower = {name.lower() for name in names}
    others = [name for name in RECORD_COLUMNS if records and name not in lower]
    whole = StructType([*fields.fields]).add(BAD, StringType())
    text = fn.col(VALUE if records else EVENT)
    # Spark puts the text of an event that does not fit into this column.
    value = fn.from_json(text.cast("string"), whole, {"columnNameOfCorruptRecord": BAD})
    parsed = events.select(value.alias("_value"), text.isNotNull().alias("_there"), *others, *POSITION)
    columns = [fn.col("_value").getField(name).alias(name) for name in names]
    bad = fn.col("_there") & (fn.col("_value").isNull() | fn.col("_value").getField(BAD).isNotNull())
    rows = parsed.select(*columns, *others, *POSITION, bad.alias(BAD))
    return rows, [*(name for name in (KEY,) if name in others), *names, *(n for n in (TIMESTAMP,) if n in others)]
