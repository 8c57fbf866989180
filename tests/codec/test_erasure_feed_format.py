"""The bytes of the erasure feed, which programs of others read."""

from __future__ import annotations

import json

import pytest

from penstock.codec.erasure_feed import FeedEvent, decode_feed_event, encode_feed_event
from penstock.model.errors import CorruptDataError, VersionTooNewError

EVENT = FeedEvent(
    n=17,
    erasure="c9.1f0c3a2b.1",
    stream="demo/clicks",
    case="c9",
    subject={"by": "json field", "field": "user.id", "digests": ["ab" * 32], "key": "cd" * 32},
    who="änn",
    why="request 17",
    identity="ann",
    asked_ms=1000,
    finished_ms=2000,
    events=3,
    bytes=90,
    segments=[{"segment": 4294967298, "events": [[0, 76], [152, 190]], "gone": False}],
    tables=[{"table": "lake.clicks", "state": "pending"}],
)
GOLDEN = (
    '{"v":1,"n":17,"erasure":"c9.1f0c3a2b.1","stream":"demo/clicks","case":"c9","subject":{"by":"json field",'
    f'"field":"user.id","digests":["{"ab" * 32}"],"key":"{"cd" * 32}"}},"who":"änn","why":"request 17",'
    '"identity":"ann","asked_ms":1000,"finished_ms":2000,"events":3,"bytes":90,"segments":[{"segment":4294967298,'
    '"events":[[0,76],[152,190]],"gone":false}],"tables":[{"table":"lake.clicks","state":"pending"}]}'
).encode()


def test_the_bytes_of_an_event_are_pinned() -> None:
    assert encode_feed_event(EVENT) == GOLDEN
    assert decode_feed_event(GOLDEN) == json.loads(GOLDEN)


def test_an_event_of_which_only_the_number_is_known_has_all_fields() -> None:
    fields = decode_feed_event(encode_feed_event(FeedEvent(n=3)))
    assert fields.keys() == json.loads(GOLDEN).keys()
    assert {name for name, value in fields.items() if value is not None} == {"v", "n"}


def test_lists_that_are_too_long_are_left_out_and_the_event_stays_small() -> None:
    many = FeedEvent(
        n=1,
        who="\N{GRINNING FACE}" * 1024,
        why="\N{GRINNING FACE}" * 1024,
        segments=[{"segment": 0, "events": [[10**18 + at, 10**18 + at + 8] for at in range(0, 40_000, 20)]}],
        tables=[{"table": "t" * 200, "state": "pending"}] * 100,
    )
    data = encode_feed_event(many)
    fields = decode_feed_event(data)
    assert (fields["segments"], fields["tables"]) == (None, None)
    assert len(data) < 64 << 10


def test_events_of_newer_versions_and_other_bytes_are_refused() -> None:
    with pytest.raises(VersionTooNewError):
        decode_feed_event(GOLDEN.replace(b'"v":1', b'"v":2'))
    for data in (b"", b"[]", b"{}", b'{"v":"x"}', b"\xff"):
        with pytest.raises(CorruptDataError):
            decode_feed_event(data)
