"""A consumer follows the erasure feed and deletes the rows that it derived from erased events."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from erasure_events import events_of

import penstock
from penstock.app.erasure.key import read_key
from penstock.core.cases.ledger import key_digest
from penstock.core.cases.matching import keyed_digest

WHO = {"who": "ann", "why": "request 17"}
SECRETS = [f"canary-{number}@example.com" for number in range(6)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    with penstock.open(tmp_path / "data") as opened:
        yield opened


def feed_of(store: Any) -> list[dict[str, Any]]:
    store._thread.call(store._inner.controller.erasures.feed.run())
    return [json.loads(event.data) for event in events_of(store.stream("_system/erasures"))]


def derive(stream: Any, rows: sqlite3.Connection) -> None:
    rows.execute("CREATE TABLE IF NOT EXISTS people (segment, start, user, PRIMARY KEY (segment, start))")
    for event in events_of(stream):
        user = json.loads(event.data)["user"]
        rows.execute("INSERT OR IGNORE INTO people VALUES (?, ?, ?)", (event.segment, event.offset, user))


def delete_derived(rows: sqlite3.Connection, event: Mapping[str, Any]) -> None:
    for item in event["segments"]:
        for start, end in item["events"]:
            rows.execute(
                "DELETE FROM people WHERE segment = ? AND start >= ? AND start < ?", (item["segment"], start, end)
            )


def fill(stream: Any) -> None:
    with stream.writer() as writer:
        for number in range(60):
            writer.write(json.dumps({"user": SECRETS[number % 6]}), key=str(number))


def test_rows_of_erased_events_are_deleted_and_no_others(store: Any) -> None:
    stream = store.create_stream("demo/clicks", create_scope=True, segments=2)
    fill(stream)
    rows = sqlite3.connect(":memory:")
    derive(stream, rows)
    group = store.reader_group("demo/cleaner", ["_system/erasures"])
    erased = [event for event in events_of(stream) if SECRETS[0].encode() in event.data]
    stream.erase(erased, erasure="e1", **WHO)
    store.cases().open("demo", [SECRETS[1]], json_field="user", case="c1", **WHO)
    store.cases().look("c1")
    assert [(item["n"], item["case"]) for item in feed_of(store)] == [(1, None), (2, "c1")]
    with group.reader("one", auto_commit=False) as reader:
        for _ in range(2):
            event = reader.read(timeout_s=10)
            assert event is not None
            delete_derived(rows, json.loads(event.data))
            reader.commit()
    left = dict(rows.execute("SELECT user, count(*) FROM people GROUP BY user"))
    assert left == dict.fromkeys(SECRETS[2:], 10)


@pytest.mark.parametrize("keep_values", [True, False])
def test_a_case_publishes_keyed_digests_and_no_value(store: Any, tmp_path: Path, keep_values: bool) -> None:
    fill(store.create_stream("demo/clicks", create_scope=True))
    store.cases().open("demo", [SECRETS[1]], json_field="user", keep_values=keep_values, case="c1", **WHO)
    case = store.cases().look("c1")
    (event,) = feed_of(store)
    key = read_key(tmp_path / "data" / "erasure.key")
    assert event["erasure"] == case.erasures[0]
    assert event["subject"] == {
        "by": "json field",
        "field": "user",
        "digests": [keyed_digest(key, SECRETS[1]).hex()],
        "key": key_digest(key),
    }
    published = json.dumps(event)
    receipt = store.stream("demo/clicks").erasures.show(event["erasure"]).receipt
    digests = [value for name, value in receipt["looked_for"].items() if "sha256" in name]
    assert digests
    for secret in (SECRETS[1], receipt["sha256"], receipt["request"]["sha256"], *digests):
        assert secret not in published


def test_the_feed_can_be_followed_before_the_first_erasure(store: Any) -> None:
    assert feed_of(store) == []
    assert events_of(store.stream("_system/erasures")) == []
