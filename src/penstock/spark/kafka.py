"""Option names of Spark's Kafka source and sink, for users who change a query's format from ``kafka`` to ``penstock``.

Options of one name and meaning in both (``failOnDataLoss``, ``minPartitions``) are taken, and are not listed here.
Source: https://spark.apache.org/docs/latest/structured-streaming-kafka-integration.html
"""

from __future__ import annotations

from collections.abc import Iterable

_START_TIME, _END_TIME = "start_timestamp", "end_timestamp"

KAFKA_OPTIONS = {
    "subscribe": "stream",
    "subscribepattern": "stream_pattern (over whole names, SCOPE/STREAM)",
    "assign": "stream",
    "topic": "stream",
    "kafka.bootstrap.servers": "controller",
    "startingoffsets": "start_stream_cut (earliest, latest or a stream cut)",
    "endingoffsets": "end_stream_cut (latest or a stream cut)",
    "startingtimestamp": _START_TIME,
    "startingoffsetsbytimestamp": _START_TIME,
    "endingtimestamp": _END_TIME,
    "endingoffsetsbytimestamp": _END_TIME,
    "maxoffsetspertrigger": "max_events_per_trigger or max_bytes_per_trigger",
    "kafka.group.id": "subscriber",
    "groupidprefix": "subscriber",
    "minoffsetspertrigger": "",
    "maxtriggerdelay": "",
    "maxrecordsperpartition": "",
    "includeheaders": "event_format (record)",
    "startingoffsetsbytimestampstrategy": "",
    "fetchoffset.numretries": "",
    "fetchoffset.retryintervalms": "",
    "kafkaconsumer.polltimeoutms": "",
}
"""By normalized name: the option to use here, and in which form; empty where there is none."""

_PREFIX = "kafka."

KAFKA_COLUMNS = {
    "value": "value as event (or event_column=value)",
    "key": "key as routing_key (or routing_key_column=key)",
    "topic": "topic as stream",
}
"""Columns that Spark's Kafka sink takes, and what they are here."""


def kafka_hint(plain: str, known: Iterable[str] = ()) -> str | None:
    """What to do about an option of Kafka, given its normalized name; None for any other option.

    ``known``: the normalized names of the options that this side takes. The source has options that the sink lacks.
    """
    if plain not in KAFKA_OPTIONS and not plain.startswith(_PREFIX):
        return None
    ours = KAFKA_OPTIONS.get(plain)
    if not ours:
        return "this is an option of Spark's Kafka format, and Penstock has none like it; remove it"
    if ours.partition(" ")[0].replace("_", "") not in known:
        return "this is an option of Spark's Kafka source, and a sink has none like it; remove it"
    return f"this is an option of Spark's Kafka format; use {ours}"


def kafka_columns_hint(names: Iterable[str]) -> str:
    """What to do about columns of rows that were made for Kafka, as the end of a sentence; empty if there are none."""
    found = [text for name, text in KAFKA_COLUMNS.items() if name in names]
    return f"; of rows for Kafka, select {', '.join(found)}" if found else ""
