"""The report of a fleet-wide dry run, as values, as JSON and as a picture. Needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.app.cli.common.words import most_held_first
from penstock.model.values.dataclass import dataclass

VERSION = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True, kw_only=True)
class Sums:
    """Sums over streams. ``streams``: decided streams. ``losing``: streams that lose data. ``bytes``, ``events``: deleted
    data. ``uncounted``: losing streams whose events are not counted. ``held_bytes``: data that only a hold keeps.
    ``moved``: subscribers moved past unread data. ``lost_bytes``: what they lose. ``dropped``: idle subscribers that are
    dropped. ``deleted``: deleted streams."""

    streams: int = 0
    losing: int = 0
    bytes: int = 0
    events: int = 0
    uncounted: int = 0
    held_bytes: int = 0
    moved: int = 0
    lost_bytes: int = 0
    dropped: int = 0
    deleted: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + row[name])


@dataclass(slots=True, kw_only=True)
class Side:
    """The effect of one policy on the fleet. ``days``: deleted data by the day of its append, as ``2026-01-31``. ``hurt``:
    subscribers that lose unread data, with size and rule, largest first. ``largest``: streams that lose most."""

    total: Sums = field(default_factory=Sums)
    scopes: dict[str, Sums] = field(default_factory=dict)
    days: dict[str, Sums] = field(default_factory=dict)
    rules: dict[str, Sums] = field(default_factory=dict)
    hurt: list[Mapping[str, Any]] = field(default_factory=list)
    dropped: list[Mapping[str, Any]] = field(default_factory=list)
    largest: list[Mapping[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "total": asdict(self.total),
            "by_scope": {name: asdict(self.scopes[name]) for name in sorted(self.scopes)},
            "by_day": {
                name: {key: getattr(found, key) for key in ("losing", "bytes", "events", "uncounted")}
                for name, found in sorted(self.days.items())
            },
            "by_rule": {
                name: {key: getattr(found, key) for key in ("streams", "losing", "bytes")}
                for name, found in sorted(self.rules.items())
            },
            "hurt": self.hurt,
            "dropped": self.dropped,
            "largest": self.largest,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """The result for all streams. ``today``: the effect of the policies in force. ``change``: the effect of the changed
    policies; None without a change. ``reached``: streams that the change applies to. ``refused``: those of them whose
    policy would contradict itself, by error message. ``errors``: the first of the ``failed`` rows that cannot be used.
    ``seconds``: how long the decisions took. ``sentence``: the change in words.

    ``subscribers``: the subscribers that hold the most bytes, largest first, with the fields of ``penstock subscriber list
    --json``. ``subscribers_total``: the number of all subscribers. Both are None for facts from files, which do not
    contain the bytes that a subscriber holds."""

    files: int
    streams: int
    reached: int
    failed: int
    errors: Sequence[Mapping[str, Any]]
    refused: Sequence[Mapping[str, Any]]
    today: Side
    change: Side | None
    sentence: str
    out: str | None
    seconds: float
    subscribers: Sequence[Mapping[str, Any]] = ()
    subscribers_total: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "files": self.files,
            "streams": self.streams,
            "reached": self.reached,
            "refused": list(self.refused),
            "failed": self.failed,
            "errors": list(self.errors),
            "change_in_words": self.sentence,
            "out": self.out,
            "seconds": round(self.seconds, 3),
            "today": self.today.as_json(),
            "change": None if self.change is None else self.change.as_json(),
            "subscribers": list(self.subscribers),
            "subscribers_total": self.subscribers_total,
        }


def collected(rows: Iterable[Mapping[str, Any]], *, errors_max: int = 100, largest_max: int = 20) -> Mapping[str, Any]:
    """Fields of a report from summed rows of ``tally.SCHEMA``: ``today``, ``change``, ``reached``, ``refused``,
    ``failed``, ``errors``, ``subscribers``, ``subscribers_total``."""
    sides = {"today": Side(), "change": Side()}
    errors: list[Mapping[str, Any]] = []
    refused: list[Mapping[str, Any]] = []
    subscribers: list[Mapping[str, Any]] = []
    reached = failed = subscribed = 0
    for row in rows:
        kind = row["kind"]
        if kind == "error":
            errors.append({"facts": row["name"], "place": row["place"], "message": row["text"]})
        elif kind == "refused":
            refused.append({"message": row["text"], "streams": row["streams"]})
        elif kind == "errors":
            failed += row["streams"]
        elif kind == "holder":
            subscribers.append(json.loads(row["text"]))
        elif kind == "subscribed":
            subscribed += row["streams"]
        elif kind == "reached":
            reached += row["streams"]
        else:
            _take(sides[row["side"]], row)
    errors.sort(key=lambda item: (item["facts"], item["place"]))
    for side in sides.values():
        side.hurt.sort(key=lambda item: (-item["bytes"], item["subscriber"]))
        side.dropped.sort(key=lambda item: (-item["streams"], item["subscriber"]))
        side.largest.sort(key=lambda item: (-item["bytes"], item["stream"]))
        del side.largest[largest_max:]
    refused.sort(key=lambda item: (-item["streams"], item["message"]))
    return {
        **sides,
        "reached": reached,
        "refused": refused,
        "failed": failed,
        "errors": errors[:errors_max],
        "subscribers": sorted(subscribers, key=most_held_first),
        "subscribers_total": subscribed,
    }


def _take(side: Side, row: Mapping[str, Any]) -> None:
    kind = row["kind"]
    if kind == "scope":
        side.total.add(row)
        side.scopes.setdefault(row["scope"], Sums()).add(row)
    elif kind == "day":
        side.days.setdefault(f"{_EPOCH + timedelta(days=row['day']):%Y-%m-%d}", Sums()).add(row)
    elif kind == "rule":
        side.rules.setdefault(row["text"], Sums()).add(row)
    elif kind == "subscriber":
        side.hurt.append(
            {
                "subscriber": row["name"],
                "rule": row["text"],
                "streams": row["streams"],
                "bytes": row["lost_bytes"],
                "events": None if row["uncounted"] else row["events"],
            }
        )
    elif kind == "drop":
        side.dropped.append({"subscriber": row["name"], "rule": row["text"], "streams": row["streams"]})
    elif kind == "stream":
        side.largest.append({"stream": f"{row['scope']}/{row['name']}", "rule": row["text"], "bytes": row["bytes"]})
