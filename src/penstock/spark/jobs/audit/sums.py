"""Sums over audit entries: by rule, by stream, by subscriber, and by the holds that kept data.

Source: docs/reference/spark.md, "audit".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from penstock.codec.audit import AuditKind
from penstock.model.values.dataclass import dataclass
from penstock.spark.jobs.audit.rows import UNREADABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN_MAX = 1000
"""Rows of each list, those that lost most first."""

_TOUCHING = (
    AuditKind.TRUNCATE,
    AuditKind.DELETE,
    AuditKind.UNDO,
    AuditKind.EXPIRE,
    AuditKind.EVICT,
    AuditKind.DROP,
    AuditKind.MOVE,
)
_HURTING = (AuditKind.EXPIRE, AuditKind.EVICT, AuditKind.MOVE, AuditKind.DROP)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSums:
    """Sums of the entries.

    ``entries`` were decided from ``first_ms`` to ``last_ms`` (None if there are none); ``kinds`` counts them by kind.
    ``unreadable``: entries that could not be parsed. ``missing``: entries that were not stored because a disk was full.
    ``removed_bytes``: bytes removed from streams, without undone removals. ``lost_bytes``: bytes that subscribers lost
    unread, whether they were removed or not.

    Each list has at most ``SHOWN_MAX`` mappings, those that lost most first. ``rules`` (by ``rule``, which is ``undo`` for
    undone removals) and ``streams`` (by ``scope``, ``stream``) have ``entries``, ``streams``, ``removed_bytes``,
    ``removed_events``, ``lost_bytes``, ``lost_events``, ``dropped`` subscribers. ``subscribers`` (by ``subscriber``,
    ``rule``) have ``times``, ``streams``, ``lost_bytes``, ``lost_events``, ``dropped``. ``holds`` (by ``hold``, ``owner``)
    have ``streams`` and ``times``, at most one per hour and stream. Events are None if some were not counted.
    """

    entries: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    unreadable: int = 0
    missing: int = 0
    removed_bytes: int = 0
    lost_bytes: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    rules: Sequence[Mapping[str, Any]] = ()
    streams: Sequence[Mapping[str, Any]] = ()
    subscribers: Sequence[Mapping[str, Any]] = ()
    holds: Sequence[Mapping[str, Any]] = ()


def sums_of(frame: DataFrame) -> AuditSums:
    """The sums over rows of ``audit.rows.SCHEMA``. Reads the frame five times, so persist it first."""
    from pyspark.sql import functions as fn

    kinds = [
        row.asDict()
        for row in frame.groupBy("kind")
        .agg(
            fn.count(fn.lit(1)).alias("entries"),
            fn.min(fn.unix_millis("at")).alias("first"),
            fn.max(fn.unix_millis("at")).alias("last"),
            fn.sum("missing").alias("missing"),
            fn.sum("removed_bytes").alias("removed"),
            fn.sum("lost_bytes").alias("lost"),
        )
        .collect()
    ]
    times = [row for row in kinds if row["first"] is not None]
    touching = frame.where(fn.col("kind").isin(*[kind.value for kind in _TOUCHING]))
    return AuditSums(
        entries=sum(row["entries"] for row in kinds),
        first_ms=min((row["first"] for row in times), default=None),
        last_ms=max((row["last"] for row in times), default=None),
        unreadable=sum(row["entries"] for row in kinds if row["kind"] == UNREADABLE),
        missing=sum(row["missing"] for row in kinds),
        removed_bytes=sum(row["removed"] for row in kinds),
        lost_bytes=sum(row["lost"] for row in kinds),
        kinds={row["kind"]: row["entries"] for row in sorted(kinds, key=lambda row: str(row["kind"]))},
        rules=_grouped(touching.withColumn("rule", fn.coalesce("rule", "kind")), ["rule"]),
        streams=_grouped(touching, ["scope", "stream"]),
        subscribers=_subscribers(frame),
        holds=_holds(frame),
    )


def _grouped(frame: DataFrame, keys: list[str]) -> list[Mapping[str, Any]]:
    from pyspark.sql import functions as fn

    found = frame.groupBy(*keys).agg(
        fn.count(fn.lit(1)).alias("entries"),
        fn.count_distinct("scope", "stream").alias("streams"),
        fn.sum("removed_bytes").alias("removed_bytes"),
        _counted("removed_bytes", "removed_events"),
        fn.sum("lost_bytes").alias("lost_bytes"),
        _counted("lost_bytes", "lost_events"),
        fn.count_if(fn.col("kind") == AuditKind.DROP.value).alias("dropped"),
    )
    # Sort by absolute size, so that undone removals rank as high as the removals.
    weight = fn.abs("removed_bytes") + fn.col("lost_bytes")
    return [row.asDict() for row in found.orderBy(weight.desc(), *keys).limit(SHOWN_MAX).collect()]


def _counted(size: str, events: str) -> Any:
    """The sum of events; null if an entry with bytes has no count of events."""
    from pyspark.sql import functions as fn

    unknown = fn.count_if((fn.col(size) != 0) & fn.col(events).isNull())
    return fn.when(unknown == 0, fn.coalesce(fn.sum(events), fn.lit(0))).alias(events)


def _subscribers(frame: DataFrame) -> list[Mapping[str, Any]]:
    from pyspark.sql import functions as fn

    each = frame.where(fn.col("kind").isin(*[kind.value for kind in _HURTING])).select(
        "kind", "scope", "stream", "rule", fn.explode("subscribers").alias("who")
    )
    size = fn.greatest(fn.coalesce("who.bytes", fn.lit(0)), fn.lit(0))
    hurt = each.select(
        fn.col("who.name").alias("subscriber"),
        "rule",
        "scope",
        "stream",
        size.alias("lost_bytes"),
        fn.when(size > 0, fn.col("who.events")).otherwise(fn.lit(0)).alias("lost_events"),
        (fn.col("kind") == AuditKind.DROP.value).alias("dropped"),
    ).where("lost_bytes > 0 OR dropped")
    found = hurt.groupBy("subscriber", "rule").agg(
        fn.count(fn.lit(1)).alias("times"),
        fn.count_distinct("scope", "stream").alias("streams"),
        fn.sum("lost_bytes").alias("lost_bytes"),
        _counted("lost_bytes", "lost_events"),
        fn.count_if("dropped").alias("dropped"),
    )
    order = (fn.desc("lost_bytes"), fn.desc("dropped"), "subscriber", "rule")
    return [row.asDict() for row in found.orderBy(*order).limit(SHOWN_MAX).collect()]


def _holds(frame: DataFrame) -> list[Mapping[str, Any]]:
    from pyspark.sql import functions as fn

    each = frame.where(fn.col("kind") == AuditKind.HELD.value).select(
        "scope", "stream", fn.explode("holds").alias("item")
    )
    found = each.groupBy(fn.col("item.hold").alias("hold"), fn.col("item.owner").alias("owner")).agg(
        fn.count_distinct("scope", "stream").alias("streams"), fn.count(fn.lit(1)).alias("times")
    )
    order = (fn.desc("streams"), "hold", "owner")
    return [row.asDict() for row in found.orderBy(*order).limit(SHOWN_MAX).collect()]
