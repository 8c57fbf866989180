"""The store's decisions, which are pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.segments.append_rules import APPEND_MAX_BYTES, append_refusal
from penstock.core.segments.garbage import ChunkName, orphan_candidates, orphans, parse_chunk_name
from penstock.core.segments.rolling import BLOCKS_MAX, block_cut, continues_chunk
from penstock.core.segments.throttle import append_throttled, tiering_is_urgent
from penstock.model.errors import (
    ConditionFailedError,
    InvalidArgumentError,
    SegmentSealedError,
    WriterFencedError,
)
from penstock.ports.data import segments
from penstock.segmentstore.settings import StoreSettings
from penstock.storage.chunks.names import check_chunk_name

GOOD = {
    "data_bytes": 1,
    "event_number": 5,
    "event_count": 1,
    "previous": 4,
    "expected_offset": None,
    "sealed": False,
    "length": 10,
    "stored": 4,
}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({}, None),
        ({"data_bytes": 0}, None),
        ({"data_bytes": APPEND_MAX_BYTES}, None),
        ({"data_bytes": APPEND_MAX_BYTES + 1}, InvalidArgumentError),
        ({"event_count": 0}, InvalidArgumentError),
        ({"event_count": 1 << 32}, InvalidArgumentError),
        ({"event_number": 4}, InvalidArgumentError),
        ({"sealed": True, "stored": 3}, SegmentSealedError),
        ({"stored": 3, "expected_offset": 9}, WriterFencedError),
        ({"expected_offset": 9}, ConditionFailedError),
        ({"expected_offset": 10}, None),
    ],
)
def test_an_append_is_refused_for_the_first_reason_that_holds(change, error) -> None:
    refusal = append_refusal("s", **(GOOD | change))
    assert (None if refusal is None else type(refusal)) is error


def test_the_limits_of_the_rules_are_those_of_the_port() -> None:
    assert APPEND_MAX_BYTES == segments.APPEND_MAX_BYTES


@given(sizes=st.lists(st.integers(1, 100), max_size=20), limit=st.integers(1, 200))
def test_a_block_is_the_longest_run_within_the_limit_but_never_empty(sizes: list[int], limit: int) -> None:
    count = block_cut(sizes, limit)
    assert count >= min(1, len(sizes))
    assert count <= 1 or sum(sizes[:count]) <= limit
    assert count == len(sizes) or sum(sizes[: count + 1]) > limit


def test_a_chunk_goes_on_within_its_limits() -> None:
    assert continues_chunk(chunk_bytes=60, block_count=1, block_bytes=40, limit_bytes=100)
    assert not continues_chunk(chunk_bytes=61, block_count=1, block_bytes=40, limit_bytes=100)
    assert not continues_chunk(chunk_bytes=0, block_count=BLOCKS_MAX, block_bytes=1, limit_bytes=100)


NUMBER = st.integers(0, 1 << 63)


@given(
    name=st.builds(
        ChunkName, container=st.integers(0, 65535), uid=NUMBER, epoch=NUMBER, start=NUMBER, attempt=st.integers(0, 99)
    )
)
def test_chunk_names_parse_and_are_taken_by_storage(name: ChunkName) -> None:
    assert parse_chunk_name(str(name)) == name
    assert check_chunk_name(str(name) + ".idx")


@pytest.mark.parametrize(
    "text", ["", "0", "0/1-2", "0/1-2-3-4-5", "0/01-2-3", "0/A-2-3", "0/1-2-3.idx", "0/1-2-3-0", "x/1-2-3"]
)
def test_other_names_are_not_ours(text: str) -> None:
    assert parse_chunk_name(text) is None


def test_only_what_an_earlier_epoch_wrote_and_nothing_names_is_an_orphan() -> None:
    listed = ["0/1-1-0", "0/1-1-0.idx", "0/2-1-0", "0/3-5-0", "0/4-6-0", "1/1-1-0", "0/9-2-7.idx", "stranger"]
    candidates = orphan_candidates(listed, container=0, epoch=5)
    assert candidates == ["0/1-1-0", "0/2-1-0", "0/9-2-7"]
    assert orphans(candidates, {"0/1-1-0"}, {"0/9-2-7": None}) == ["0/2-1-0"]


def test_memory_is_refused_at_the_limit_and_urgent_at_half() -> None:
    assert append_throttled(0, limit_bytes=10, adding_bytes=100) is None
    assert append_throttled(5, limit_bytes=10, adding_bytes=5) is None
    assert append_throttled(6, limit_bytes=10, adding_bytes=5) is not None
    assert not tiering_is_urgent(4, limit_bytes=10)
    assert tiering_is_urgent(5, limit_bytes=10)


@given(held=st.integers(0, 30), limit=st.integers(1, 10), adding=st.integers(0, 30))
def test_an_append_waits_only_while_tiering_is_urgent(held: int, limit: int, adding: int) -> None:
    if append_throttled(held, limit_bytes=limit, adding_bytes=adding) is not None:
        assert held + adding > limit
        assert tiering_is_urgent(held, limit_bytes=limit)


@pytest.mark.parametrize(
    "settings", [{"containers": 0}, {"containers": 70_000}, {"flush_interval_s": -1.0}, {"retry_max_s": 0.01}]
)
def test_settings_are_checked_when_made(settings) -> None:
    with pytest.raises(InvalidArgumentError):
        StoreSettings(**settings)
