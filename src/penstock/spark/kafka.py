"""Option names of Spark's Kafka source and sink, for users who change a query's format from ``kafka`` to ``penstock``.

Options of one name and meaning in both (``failOnDataLoss``, ``minPartitions``) are taken, and are not listed here.
Source: https://spark.apache.org/docs/latest/structured-streaming-kafka-integration.html
"""

from __future__ import annotations

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


def kafka_hint(plain: str) -> str | None:
    """What to do about an option of Kafka, given its normalized name; None for any other option."""
    if plain not in KAFKA_OPTIONS and not plain.startswith(_PREFIX):
        return None
    ours = KAFKA_OPTIONS.get(plain)
    return (
        f"this is an option of Spark's Kafka format; use {ours}"
        if ours
        else ("this is an option of Spark's Kafka format, and Penstock has none like it; remove it")
    )
