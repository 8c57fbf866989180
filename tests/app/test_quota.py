"""Backlog quotas as a user of the embedded store meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.model.errors import QuotaExceededError, QuotaHeldError


def write_one(stream: Any) -> None:
    with stream.writer(deadline_s=0.3) as writer:
        writer.write(b"one too many")


@pytest.mark.parametrize("quota", [{"max_bytes": 1000}, {"max_events": 5}])
def test_a_batch_larger_than_the_whole_quota_is_taken_while_nothing_is_unread(tmp_path: Path, quota: dict) -> None:
    with penstock.open(tmp_path / "store") as store:
        stream = store.create_stream("s/t", create_scope=True)
        group = store.reader_group("s/g", ["s/t"], retention="manual")
        stream.retention.set({"backlog": {**quota, "on_exceed": "hold"}})
        for _ in range(2):
            with stream.writer(deadline_s=10) as writer:
                writer.write_many([b"x" * 100] * 20)
            (subscriber,) = stream.subscribers()
            assert subscriber.lag_events == 20
            with pytest.raises(QuotaHeldError) as held:
                write_one(stream)
            assert held.value.fields["used"] == (20 if "max_events" in quota else 20 * 108)
            assert held.value.fields["subscriber"] == "s/g"
            group.publish(stream.tail())


def test_a_refused_event_says_how_much_is_unread(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        stream = store.create_stream("s/t", create_scope=True)
        store.reader_group("s/g", ["s/t"], retention="manual")
        stream.retention.set({"backlog": {"max_events": 10, "on_exceed": "reject"}})
        with stream.writer() as writer:
            for number in range(10):
                writer.write(b"%d" % number)
                writer.flush()
            writer.write(b"eleven")
            with pytest.raises(QuotaExceededError) as refused:
                writer.flush()
        assert refused.value.fields | {"limit": 10, "used": 10, "rule": "backlog-events"} == refused.value.fields
