"""Converts between Pravega's REST documents and our own values.

Pravega uses whole MiB (``LIMITED_SIZE_MB``) and days, or days, hours and minutes (``LIMITED_DAYS``). It rounds down in
answers and never returns a maximum. A policy that was set with finer values is rounded in answers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.policies import (
    LONG_MAX,
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)
from penstock.model.segments import SegmentId, SegmentRange, epoch_of, number_of
from penstock.net.http.reading_requests import Fields
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.layout import EpochInfo

MIB = 1 << 20
INT_MAX = (1 << 31) - 1  # largest Java int
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS

_SCALE_TYPES = {
    ScaleType.FIXED: "FIXED_NUM_SEGMENTS",
    ScaleType.KILOBYTES_PER_S: "BY_RATE_IN_KBYTES_PER_SEC",
    ScaleType.EVENTS_PER_S: "BY_RATE_IN_EVENTS_PER_SEC",
}
_SCALE_TYPES_BACK = {name: kind for kind, name in _SCALE_TYPES.items()}
_SIZE, _TIME = "LIMITED_SIZE_MB", "LIMITED_DAYS"

Document = dict[str, Any]


# --- reading -----------------------------------------------------------------------------------------------


def config_of(body: Fields, stream: StreamName | None, present: StreamConfig | None = None) -> StreamConfig:
    """The configuration in the body of a request to create (``present=None``) or to update a stream.

    ``streamTags`` is also accepted as ``tags``, its name in answers. The body may contain the stream's names if they
    match the path. So a body from an earlier answer can be sent again. Raises InvalidArgumentError.
    """
    if stream is not None:
        for name, given in (("scopeName", stream.scope), ("streamName", stream.stream)):
            said = body.text(name)
            if said is not None and said != given:
                body.refuse("the name in the body differs from the one in the path", name, said)
    scaling = body.inner("scalingPolicy")
    if scaling is None and present is not None:
        body.refuse("field is missing: an update replaces the whole configuration", "scalingPolicy")
    retention = body.inner("retentionPolicy")
    tags, answered = body.texts("streamTags"), body.texts("tags")
    config = StreamConfig(
        scaling=ScalingPolicy() if scaling is None else _scaling_of(scaling),
        retention=None if retention is None else _exact(_retention_of(retention), present),
        tags=tags if tags is not None else answered or (),
        timestamp_aggregation_ms=body.whole("timestampAggregationTimeout") or 0,
        rollover_bytes=body.whole("rolloverSizeBytes") or 0,
    )
    body.finish()
    return config


def _scaling_of(fields: Fields) -> ScalingPolicy:
    name = fields.need_text("type")
    if name not in _SCALE_TYPES_BACK:
        fields.refuse(f"type must be one of {', '.join(_SCALE_TYPES_BACK)}", "type", name)
    kind = _SCALE_TYPES_BACK[name]
    rate, factor = fields.whole("targetRate", limit=INT_MAX), fields.whole("scaleFactor", limit=INT_MAX)
    least = fields.need_whole("minSegments", limit=INT_MAX)
    fields.finish()
    if kind is ScaleType.FIXED:
        return ScalingPolicy(min_segments=least)
    return ScalingPolicy(type=kind, target_rate=rate or 0, factor=factor or 0, min_segments=least)


def _retention_of(fields: Fields) -> RetentionPolicy:
    kind = fields.need_text("type")
    value, most = fields.whole("value"), fields.whole("maxValue")
    span, span_most = fields.inner("timeBasedRetention"), fields.inner("maxTimeBasedRetention")
    if kind not in (_SIZE, _TIME):
        fields.refuse(f"type must be one of {_TIME}, {_SIZE}", "type", kind)
    if kind == _SIZE:
        if value is None:
            fields.refuse("field is missing", "value")
        for name, given in (("timeBasedRetention", span), ("maxTimeBasedRetention", span_most)):
            if given is not None:
                fields.refuse(f"field is only for {_TIME}", name)
        fields.finish()
        maximum = None if most is None else _scaled(fields, "maxValue", most, MIB)
        return RetentionPolicy(type=RetentionType.SIZE, minimum=_scaled(fields, "value", value, MIB), maximum=maximum)
    if value is None and span is None:
        fields.refuse("field is missing", "value")
    minimum = _span_of(fields, "value", value, span)
    limited = most is not None or span_most is not None
    maximum = _span_of(fields, "maxValue", most, span_most) if limited else None
    fields.finish()
    return RetentionPolicy(type=RetentionType.TIME, minimum=minimum, maximum=maximum)


def _span_of(fields: Fields, name: str, days: int | None, span: Fields | None) -> int:
    """Milliseconds. From the days, unless they are 0 and a finer span is given, as in Pravega."""
    whole_ms = _scaled(fields, name, days or 0, _DAY_MS)
    if span is None:
        return whole_ms
    parts = [_scaled(span, unit, span.whole(unit) or 0, size) for unit, size in _UNITS]
    span.finish()
    if sum(parts) > LONG_MAX:
        fields.refuse("duration is too long", name)
    return whole_ms or sum(parts)


_UNITS = (("days", _DAY_MS), ("hours", _HOUR_MS), ("minutes", _MINUTE_MS))


def _scaled(fields: Fields, name: str, value: int, unit: int) -> int:
    if value * unit > LONG_MAX:
        fields.refuse("limit is too large", name, value)
    return value * unit


def _exact(wanted: RetentionPolicy, present: StreamConfig | None) -> RetentionPolicy:
    """Keep a minimum that is finer than Pravega's REST can express if a caller sends back an earlier answer.

    A minimum of 30 seconds is returned as 0 minutes; stored like that, it would free all data.
    """
    before = None if present is None else present.retention
    if before is None or before.type is not wanted.type or _shown(before) != wanted.minimum:
        return wanted
    if wanted.maximum is not None and wanted.maximum < before.minimum:
        return wanted
    return RetentionPolicy(type=before.type, minimum=before.minimum, maximum=wanted.maximum)


def _shown(policy: RetentionPolicy) -> int:
    """The minimum as an answer shows it."""
    return policy.minimum - policy.minimum % (MIB if policy.type is RetentionType.SIZE else _MINUTE_MS)


# --- answering ---------------------------------------------------------------------------------------------


def stream_document(stream: StreamName, config: StreamConfig) -> Document:
    """``StreamProperty``. Values that are not set are left out."""
    document: Document = {
        "scopeName": stream.scope,
        "streamName": stream.stream,
        "scalingPolicy": _scaling_document(config.scaling),
    }
    if config.retention is not None:
        document["retentionPolicy"] = _retention_document(config.retention)
    document["tags"] = list(config.tags)
    document["timestampAggregationTimeout"] = config.timestamp_aggregation_ms
    document["rolloverSizeBytes"] = config.rollover_bytes
    return document


def _scaling_document(policy: ScalingPolicy) -> Document:
    document: Document = {"type": _SCALE_TYPES[policy.type]}
    if policy.type is not ScaleType.FIXED:
        document |= {"targetRate": policy.target_rate, "scaleFactor": policy.factor}
    return document | {"minSegments": policy.min_segments}


def _retention_document(policy: RetentionPolicy) -> Document:
    if policy.type is RetentionType.SIZE:
        return {"type": _SIZE, "value": policy.minimum // MIB}
    days, rest = divmod(policy.minimum, _DAY_MS)
    span = {"days": days, "hours": rest // _HOUR_MS, "minutes": rest % _HOUR_MS // _MINUTE_MS}
    # Whole days are in both fields; anything finer is in the second field only.
    return {"type": _TIME, "value": days if rest == 0 else 0, "timeBasedRetention": span}


def group_document(group: ReaderGroupConfig, online: Sequence[str] | None) -> Document:
    """``ReaderGroupProperty``. Streams of the group's own scope appear by their bare name, as in Pravega."""
    streams = sorted({*group.start_cuts, *group.end_cuts})
    document: Document = {
        "scopeName": group.scope,
        "readerGroupName": group.name,
        "streamList": [item.stream if item.scope == group.scope else str(item) for item in streams],
    }
    return document if online is None else document | {"onlineReaderIds": list(online)}


def scaling_events(epochs: Sequence[EpochInfo], *, start_ms: int, end_ms: int) -> list[Document]:
    """The epochs that began at ``start_ms <= time <= end_ms``, oldest first, after the epoch that precedes them."""
    since = {item.segment: epoch.created_ms for epoch in reversed(epochs) for item in epoch.segments}
    within = [index for index, epoch in enumerate(epochs) if start_ms <= epoch.created_ms <= end_ms]
    earlier = [index for index, epoch in enumerate(epochs) if epoch.created_ms < start_ms][-1:]
    return [_event_document(epochs, index, since) for index in (*earlier, *within)]


def _event_document(epochs: Sequence[EpochInfo], index: int, since: Mapping[SegmentId, int]) -> Document:
    epoch = epochs[index]
    before: Sequence[SegmentRange] = epochs[index - 1].segments if index else ()
    return {
        "timestamp": epoch.created_ms,
        "segments": [
            {
                "number": number_of(item.segment),
                "epoch": epoch_of(item.segment),
                "start": since[item.segment],
                "keyStart": item.keys.low,
                "keyEnd": item.keys.high,
            }
            for item in epoch.segments
        ],
        "splits": _met_by_several(before, epoch.segments),
        "merges": _met_by_several(epoch.segments, before),
    }


def _met_by_several(ranges: Iterable[SegmentRange], others: Sequence[SegmentRange]) -> int:
    """How many of ``ranges`` share keys with more than one of ``others``. Both in key order, each tiling the key space."""
    count, first = 0, 0
    for item in ranges:
        while first < len(others) and others[first].keys.high <= item.keys.low:
            first += 1
        count += first + 1 < len(others) and others[first + 1].keys.low < item.keys.high
    return count


def check_span(start_ms: int, end_ms: int) -> None:
    """Raises InvalidArgumentError."""
    if start_ms > end_ms:
        raise InvalidArgumentError("the time span ends before it begins", start=start_ms, end=end_ms)
