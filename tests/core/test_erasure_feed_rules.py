"""What the erasure feed publishes about an erasure: exact positions, and a case only if it has asked."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.control.cases import CaseRecord, CaseStreamRecord
from penstock.codec.control.erasures import ErasurePartRecord, ErasureRecord, ErasureState
from penstock.codec.events import HEADER_BYTES
from penstock.core.cases.feed import DIGESTS_MAX, feed_event, is_of_case, positions_of
from penstock.core.cases.progress import erasure_id
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId

STREAM = StreamName("s", "t")
KEY = b"k" * 32
RECEIPT = {
    "erasure": "c1",
    "who": "ann",
    "why": "request",
    "asked_ms": 1,
    "finished_ms": 2,
    "where": {"events": 0, "bytes": 0, "segments": []},
}


@given(
    payloads=st.lists(st.integers(min_value=0, max_value=20), min_size=1, max_size=30),
    chosen=st.lists(st.integers(min_value=0, max_value=29), max_size=30),
    pages=st.integers(min_value=1, max_value=3),
)
def test_an_offset_is_in_a_range_exactly_if_its_event_was_erased(
    payloads: Sequence[int], chosen: Sequence[int], pages: int
) -> None:
    starts = [sum(payloads[:number]) + HEADER_BYTES * number for number in range(len(payloads))]
    erased = sorted({number for number in chosen if number < len(payloads)})
    parts = []
    for page in range(pages):
        own = erased[page::pages]
        begins = [starts[number] + HEADER_BYTES for number in own if payloads[number]]
        ends = [starts[number] + HEADER_BYTES + payloads[number] for number in own if payloads[number]]
        empty = [starts[number] for number in own if not payloads[number]]
        ranges = list(zip(begins, ends, strict=True))
        parts.append(ErasurePartRecord(segment=SegmentId(5), ranges=ranges, events=len(own), empty=empty))
    (found,) = positions_of(parts, {"where": {"segments": [{"segment": 5, "gone": True}]}})
    assert found["gone"]
    assert [
        number for number, start in enumerate(starts) if any(low <= start < high for low, high in found["events"])
    ] == erased
    # Adjacent events are one range.
    assert all(left[1] < right[0] for left, right in zip(found["events"], found["events"][1:], strict=False))


def test_a_case_is_named_only_if_it_has_asked_for_the_erasure() -> None:
    searched = CaseStreamRecord(incarnation=1, searched={}, proved={}, rounds=2)
    asked = [erasure_id("c1", STREAM, number) for number in (1, 2)]
    assert all(is_of_case("c1", erasure, STREAM, searched) for erasure in asked)
    for erasure in (erasure_id("c1", STREAM, 3), erasure_id("c1", STREAM, 0), "c1.x.1", "e1", asked[0] + ".1"):
        assert not is_of_case("c1", erasure, STREAM, searched)
    assert not is_of_case("c2", asked[0], STREAM, searched)
    assert not is_of_case("c1", asked[0], StreamName("s", "u"), searched)
    assert not is_of_case("c1", asked[0], STREAM, None)


def test_a_subject_is_published_without_values_whatever_the_case_keeps() -> None:
    values = [f"value-{number}" for number in range(DIGESTS_MAX + 1)]
    record = ErasureRecord(stream="s/t", incarnation=1, state=ErasureState.DONE, asked={}, asked_ms=1, receipt=RECEIPT)
    fields = {"by": "json field", "field": "user"}
    for subject, key, published in (
        ({**fields, "values": values}, KEY, {**fields, "left_out": len(values)}),
        ({**fields, "values": values[:1]}, None, {"by": "json field", "left_out": 1}),
        ({"by": "payload contains", "values": values[:2]}, KEY, {"by": "payload contains", "left_out": 2}),
    ):
        case = CaseRecord(targets=["s"], subject=subject, who="a", why="b", opened_ms=1, due_ms=2)
        event = feed_event(1, record, parts=None, tables=None, case=("c1", case), key=key)
        assert event.subject == published
