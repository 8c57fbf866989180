"""The controller's records: pinned bytes, round trips, and refusal of what cannot be read."""

from __future__ import annotations

import json
import re
from typing import Any, get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.control.policies import HoldPlaceRecord, HoldRecord, PolicyRecord, policy_fields, read_policy
from penstock.codec.control.readers import (
    PAST_POSITIONS_MAX,
    PAST_TRUNCATIONS_MAX,
    EvictionsRecord,
    GroupRecord,
    GroupState,
    PastTruncation,
    PastTruncationsRecord,
    RetentionSetRecord,
    SubscriberRecord,
    TailRecord,
)
from penstock.codec.control.record import JsonRecord, record_form
from penstock.codec.control.streams import (
    BatchPin,
    BatchRecord,
    CompletedRecord,
    CounterRecord,
    DecisionRecord,
    EpochEntry,
    ForgottenRecord,
    HeadRecord,
    JoinRecord,
    LengthsRecord,
    MarkerRecord,
    ScopeRecord,
    StreamRecord,
    StreamState,
    TransactionRecord,
    TransactionState,
    Work,
    WorkKind,
)
from penstock.codec.control.truncations import (
    BucketRecord,
    ClockRecord,
    DeletedRecord,
    GapRecord,
    GraceRecord,
    GraceState,
    HeartbeatRecord,
    MovedRecord,
    OutboxRecord,
    PointRecord,
)
from penstock.model.answers.subscribers import Eviction
from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.policies import ReaderGroupRetention, RetentionPolicy, RetentionType, ScalingPolicy, StreamConfig
from penstock.model.retention import Backlog, Idle, PolicyDocument, Retain
from penstock.model.segments import SegmentRange, even_ranges, make_segment_id
from penstock.ports.data.tables import VALUE_MAX_BYTES

TXN = UUID(int=(1 << 96) + 5)
TXN_TEXT = "00000001000000000000000000000005"

GOLDEN = [
    (ScopeRecord(), b'{"v":1,"deleting":false}'),
    (MarkerRecord(), b'{"v":1}'),
    (CounterRecord(value=65536), b'{"v":1,"value":65536}'),
    (
        StreamRecord(
            state=StreamState.ACTIVE,
            config=StreamConfig(
                scaling=ScalingPolicy(min_segments=2),
                retention=RetentionPolicy(type=RetentionType.SIZE, minimum=5),
                tags=("a",),
            ),
            incarnation=3,
            epoch=1,
            next_number=7,
            created_ms=9,
            work=Work(kind=WorkKind.ROLL, base_epoch=1, txn_epoch=0, transactions=(TXN,)),
        ),
        b'{"v":1,"state":"active","config":{"scaling":["fixed",0,0,2],"retention":["size",5,null],"tags":["a"],'
        b'"aggregation_ms":0,"rollover_bytes":0},"incarnation":3,"epoch":1,"next":7,"created_ms":9,'
        b'"work":{"kind":"roll","base":1,"txn_epoch":0,"txns":["' + TXN_TEXT.encode() + b'"]}}',
    ),
    (
        EpochEntry(
            epoch=1,
            segments=tuple(
                SegmentRange(segment=make_segment_id(1, n), keys=keys) for n, keys in enumerate(even_ranges(3))
            ),
            created_ms=4,
        ),
        b'{"v":1,"epoch":1,"created_ms":4,"ids":[4294967296,4294967297,4294967298],'
        b'"bounds":[0.0,0.3333333333333333,0.6666666666666666,1.0]}',
    ),
    (
        StreamRecord(
            state=StreamState.SEALING,
            config=StreamConfig(retention=RetentionPolicy(type=RetentionType.SIZE, minimum=5)),
            incarnation=0,
            epoch=0,
            next_number=1,
            created_ms=9,
            policy=policy_fields(PolicyDocument(retain=Retain(min_bytes=5), backlog=Backlog(ttl_s=60, max_bytes=None))),
            ending=True,
        ),
        b'{"v":2,"state":"sealing","config":{"scaling":["fixed",0,0,1],"retention":["size",5,null],"tags":[],'
        b'"aggregation_ms":0,"rollover_bytes":0},"incarnation":0,"epoch":0,"next":1,"created_ms":9,"work":null,'
        b'"policy":{"v":1,"document":{"retain":{"min_bytes":5},"backlog":{"ttl_s":60,"max_bytes":null}}},"ending":true}',
    ),
    (
        PolicyRecord(document=PolicyDocument(idle=Idle(stream_s=3.5), grace_s=1)),
        b'{"v":1,"document":{"idle":{"stream_s":3.5},"grace_s":1}}',
    ),
    (
        HoldRecord(
            stream="t",
            incarnation=3,
            owner="legal",
            reason="case 7",
            created_ms=1,
            until_ms=9,
            cut={make_segment_id(0, 1): 2},
        ),
        b'{"v":1,"stream":"t","incarnation":3,"owner":"legal","reason":"case 7","created_ms":1,"until_ms":9,'
        b'"cut":{"1":2},"ended_ms":null}',
    ),
    (HoldPlaceRecord(scope="s"), b'{"v":1,"scope":"s"}'),
    (LengthsRecord(lengths={make_segment_id(0, 1): 20}), b'{"v":1,"lengths":{"1":20}}'),
    (
        LengthsRecord(lengths={make_segment_id(0, 1): 20}, events={make_segment_id(0, 1): 4}),
        b'{"v":1,"lengths":{"1":20},"events":{"1":4}}',
    ),
    (
        HeadRecord(cut={make_segment_id(0, 1): 2}, pending={make_segment_id(1, 2): -1}, truncated_bytes=2),
        b'{"v":1,"cut":{"1":2},"pending":{"4294967298":-1},"truncated_bytes":2}',
    ),
    (
        TransactionRecord(
            state=TransactionState.OPEN,
            epoch=1,
            expires_ms=5,
            deadline_ms=6,
            pin=BatchPin(writer="w/é", batch=3),
        ),
        '{"v":1,"state":"open","epoch":1,"expires_ms":5,"deadline_ms":6,"pin":["w/é",3]}'.encode(),
    ),
    (
        TransactionRecord(state=TransactionState.OPEN, epoch=1, expires_ms=5, deadline_ms=6, key=TXN),
        b'{"v":1,"state":"open","epoch":1,"expires_ms":5,"deadline_ms":6,"pin":null,"key":"'
        + TXN_TEXT.encode()
        + b'"}',
    ),
    (
        TransactionRecord(state=TransactionState.OPEN, epoch=1, expires_ms=5, deadline_ms=6, incarnation=7),
        b'{"v":1,"state":"open","epoch":1,"expires_ms":5,"deadline_ms":6,"pin":null,"incarnation":7}',
    ),
    (JoinRecord(transaction=TXN), b'{"v":1,"txn":"' + TXN_TEXT.encode() + b'"}'),
    (
        CompletedRecord(state=TransactionState.COMMITTED, completed_ms=8),
        b'{"v":1,"state":"committed","completed_ms":8}',
    ),
    (
        DecisionRecord(commit=True, transactions=(TXN,)),
        b'{"v":1,"commit":true,"txns":["' + TXN_TEXT.encode() + b'"]}',
    ),
    (BatchRecord(batch=4, transactions=()), b'{"v":1,"batch":4,"txns":[]}'),
    (BatchRecord(batch=0, transactions=(), one_job=True), b'{"v":1,"batch":0,"txns":[],"one_job":true}'),
    (
        BatchRecord(batch=4, transactions=(), query="q", run="r3", past_runs=("r2", "r1")),
        b'{"v":1,"batch":4,"txns":[],"query":"q","run":"r3","past_runs":["r2","r1"]}',
    ),
    (
        GroupRecord(
            state=GroupState.ACTIVE,
            id=TXN,
            generation=2,
            retention=ReaderGroupRetention.MANUAL,
            start_cuts={"s/t": {make_segment_id(0, 0): 1}},
            end_cuts={},
            refresh_ms=1,
            checkpoint_interval_ms=2,
            max_outstanding_checkpoints=3,
            rollover_bytes=4,
            leaving=("s/u",),
        ),
        b'{"v":1,"state":"active","id":"' + TXN_TEXT.encode() + b'","generation":2,"retention":"MANUAL",'
        b'"start":{"s/t":{"0":1}},"end":{},"refresh_ms":1,"checkpoint_interval_ms":2,"checkpoints":3,'
        b'"rollover_bytes":4,"leaving":["s/u"]}',
    ),
    (
        SubscriberRecord(group_id=TXN, generation=1, incarnation=0, cut=None, updated_ms=3),
        b'{"v":1,"group":"' + TXN_TEXT.encode() + b'","generation":1,"incarnation":0,"cut":null,"updated_ms":3}',
    ),
    (
        SubscriberRecord(
            group_id=TXN,
            generation=1,
            incarnation=0,
            cut={make_segment_id(0, 0): 5},
            updated_ms=3,
            own={make_segment_id(0, 0): 2},
        ),
        b'{"v":1,"group":"' + TXN_TEXT.encode() + b'","generation":1,"incarnation":0,"cut":{"0":5},"updated_ms":3,'
        b'"own":{"0":2}}',
    ),
    (
        SubscriberRecord(group_id=TXN, generation=1, incarnation=0, cut=None, updated_ms=3, dropped=True),
        b'{"v":2,"group":"' + TXN_TEXT.encode() + b'","generation":1,"incarnation":0,"cut":null,"updated_ms":3,'
        b'"dropped":true}',
    ),
    (
        TailRecord(time_ms=3, size_bytes=9, cut={make_segment_id(0, 0): 9}, events=2),
        b'{"v":1,"time_ms":3,"size_bytes":9,"cut":{"0":9},"events":2}',
    ),
    (RetentionSetRecord(pruned_ms=7), b'{"v":1,"pruned_ms":7}'),
    (
        PastTruncationsRecord(
            truncations=(
                PastTruncation(at_ms=3, rule="minimum", bytes=9, cut={make_segment_id(0, 0): 9}),
                PastTruncation(at_ms=4, rule="ttl", bytes=1, cut=None),
            )
        ),
        b'{"v":1,"truncations":[[3,"minimum",9,{"0":9}],[4,"ttl",1,null]]}',
    ),
    (
        TailRecord(time_ms=3, size_bytes=9, cut={make_segment_id(0, 0): 9}),
        b'{"v":1,"time_ms":3,"size_bytes":9,"cut":{"0":9}}',
    ),
    (
        EvictionsRecord(
            evictions=(
                Eviction(at_ms=9, subscriber="s/g", start={"0#0": 1}, end=None, bytes=3, events=None, rule="ttl"),
            )
        ),
        b'{"v":1,"evictions":[{"at_ms":9,"subscriber":"s/g","from":{"0#0":1},"to":null,"bytes":3,"events":null,'
        b'"rule":"ttl"}]}',
    ),
    (HeadRecord(), b'{"v":1,"cut":{},"pending":null,"truncated_bytes":0}'),
    (
        HeadRecord(cut={make_segment_id(1, 10): 1, make_segment_id(0, 9): 2}, grace_ms=5),
        b'{"v":2,"cut":{"9":2,"4294967306":1},"pending":null,"truncated_bytes":0,"grace_ms":5}',
    ),
    (
        BatchRecord(batch=1, transactions=(TXN,), at_ms=86_400_000),
        b'{"v":1,"batch":1,"txns":["' + TXN_TEXT.encode() + b'"],"at_ms":86400000}',
    ),
    (ForgottenRecord(digests=(b"aaaaaaaa", b"bbbbbbbb")), b'{"v":1,"digests":"YWFhYWFhYWFiYmJiYmJiYg=="}'),
    (
        GraceRecord(before={}, after={make_segment_id(0, 1): 7}, at_ms=1, due_ms=5, size_bytes=7),
        b'{"v":1,"before":{},"after":{"1":7},"at_ms":1,"due_ms":5,"size_bytes":7,"state":"kept"}',
    ),
    (
        GraceRecord(
            before={make_segment_id(0, 1): 2},
            after={make_segment_id(0, 1): 7},
            at_ms=1,
            due_ms=5,
            size_bytes=5,
            state=GraceState.UNDONE,
            wall_ms=8,
        ),
        b'{"v":1,"before":{"1":2},"after":{"1":7},"at_ms":1,"due_ms":5,"size_bytes":5,"state":"undone","wall_ms":8}',
    ),
    (
        DeletedRecord(deleted_ms=1, due_ms=2, rule="manual", size_bytes=None, sealed=True, caller={"who": "é"}),
        '{"v":1,"deleted_ms":1,"due_ms":2,"rule":"manual","size_bytes":null,"sealed":true,"state":"kept",'
        '"caller":{"who":"é"}}'.encode(),
    ),
    (
        MovedRecord(
            before=SubscriberRecord(
                group_id=TXN, generation=1, incarnation=0, cut=None, updated_ms=3, query="q", run="r", past_runs=("o",)
            )
        ),
        b'{"v":1,"before":"{\\"v\\":1,\\"group\\":\\"'
        + TXN_TEXT.encode()
        + b'\\",\\"generation\\":1,\\"incarnation\\":0,'
        b'\\"cut\\":null,\\"updated_ms\\":3,\\"query\\":\\"q\\",\\"run\\":\\"r\\",\\"past_runs\\":[\\"o\\"]}","dropped":false}',
    ),
    (ClockRecord(retention_ms=1, wall_ms=2), b'{"v":1,"retention_ms":1,"wall_ms":2,"behind_ms":0}'),
    (HeartbeatRecord(beat=3), b'{"v":1,"beat":3}'),
    (BucketRecord(owner="c", epoch=4), b'{"v":1,"owner":"c","epoch":4}'),
    (PointRecord(time_ms=1, size_bytes=2, head_bytes=0), b'{"v":1,"t":1,"size":2,"head":0}'),
    (OutboxRecord(event='{"v":1}'), b'{"v":1,"event":"{\\"v\\":1}"}'),
    (GapRecord(count=1, first_ms=2, last_ms=3), b'{"v":1,"count":1,"first_ms":2,"last_ms":3}'),
    (GapRecord(count=1, first_ms=2, last_ms=3, added=1), b'{"v":1,"count":1,"first_ms":2,"last_ms":3,"added":1}'),
]


@pytest.mark.parametrize(("record", "data"), GOLDEN, ids=lambda item: type(item).__name__)
def test_records_are_pinned_and_decode_for_ever(record, data: bytes) -> None:
    assert record.encode() == data
    assert type(record).decode(data) == record


@pytest.mark.parametrize("record", [record for record, _ in GOLDEN], ids=lambda item: type(item).__name__)
def test_a_later_version_and_unreadable_bytes_are_refused(record) -> None:
    kind = type(record)
    with pytest.raises(VersionTooNewError):
        kind.decode(re.sub(rb'"v":[12]', b'"v":9', record.encode(), count=1))
    for bad in (b"", b"[]", b"{}", b"\xff", b'{"v":"x"}', record.encode()[:-1]):
        with pytest.raises(CorruptDataError):
            kind.decode(bad)


def test_fields_that_records_of_earlier_versions_lack_have_their_defaults() -> None:
    assert ClockRecord.decode(b'{"v":1,"retention_ms":1,"wall_ms":2}').behind_ms == 0
    for missing in (b'{"v":1,"cut":{},"pending":null}', b'{"v":1,"cut":{},"truncated_bytes":0}'):
        with pytest.raises(CorruptDataError):
            HeadRecord.decode(missing)


def test_fields_that_are_not_known_are_ignored() -> None:
    for record, data in GOLDEN:
        assert type(record).decode(data[:-1] + b',"later":{"a":[1]}}') == record


@pytest.mark.parametrize(
    "record", [record for record, _ in GOLDEN if isinstance(record, JsonRecord)], ids=lambda item: type(item).__name__
)
def test_a_null_is_refused_where_the_type_has_none(record) -> None:
    for item in record_form(type(record)).fields:
        if item.type is Any or type(None) in get_args(item.type):
            continue
        with pytest.raises(CorruptDataError):
            type(record).decode(json.dumps({**json.loads(record.encode()), item.key: None}).encode())


@given(data=st.binary(max_size=80))
def test_no_bytes_raise_anything_untyped(data: bytes) -> None:
    for record, _ in GOLDEN:
        try:
            type(record).decode(data)
        except (CorruptDataError, VersionTooNewError):
            continue


@given(count=st.integers(1, 400), epoch=st.integers(0, 1 << 20))
def test_key_ranges_come_back_bit_for_bit(count: int, epoch: int) -> None:
    segments = tuple(
        SegmentRange(segment=make_segment_id(epoch, n), keys=keys) for n, keys in enumerate(even_ranges(count))
    )
    entry = EpochEntry(epoch=epoch, segments=segments, created_ms=1)
    assert EpochEntry.decode(entry.encode()) == entry


def test_the_largest_stream_fits_into_one_value() -> None:
    segments = tuple(
        SegmentRange(segment=make_segment_id(1 << 30, (1 << 30) + n), keys=keys)
        for n, keys in enumerate(even_ranges(10_000))
    )
    assert len(EpochEntry(epoch=1 << 30, segments=segments, created_ms=1 << 42).encode()) < VALUE_MAX_BYTES
    cut = {item.segment: 1 << 50 for item in segments}
    assert len(HeadRecord(cut=cut, pending=cut, truncated_bytes=1).encode()) < VALUE_MAX_BYTES


def test_a_policy_that_cannot_be_read_stays_with_its_stream_as_it_was() -> None:
    record = next(item for item, _ in GOLDEN if isinstance(item, StreamRecord) and item.policy is not None)
    for stored, error in (
        ({"v": 2, "document": {"new": 1}}, VersionTooNewError),
        ({"v": 1, "document": {"retain": {"min_bytes": -1}}}, CorruptDataError),
        ({"v": 1}, CorruptDataError),
        ("garbage", CorruptDataError),
    ):
        text = record.encode().replace(json.dumps(record.policy, separators=(",", ":")).encode(), b"@")
        again = StreamRecord.decode(text.replace(b"@", json.dumps(stored).encode()))
        assert again.policy == stored
        assert StreamRecord.decode(again.encode()) == again
        with pytest.raises(error):
            read_policy(again.policy)


def test_past_truncations_stay_within_bounds_however_large_the_stream_is() -> None:
    record = PastTruncationsRecord()
    for number in range(300):
        cut = {make_segment_id(0, segment): number for segment in range(10)}
        record = record.with_(PastTruncation(at_ms=number, rule="minimum", bytes=1, cut=cut))
    assert [item.at_ms for item in record.truncations] == list(range(300 - PAST_TRUNCATIONS_MAX, 300))
    wide = {make_segment_id(1 << 30, (1 << 30) + segment): 1 << 50 for segment in range(PAST_POSITIONS_MAX)}
    record = record.with_(PastTruncation(at_ms=300, rule="minimum", bytes=1, cut=wide))
    assert [item.at_ms for item in record.truncations] == [300]
    assert len(record.encode()) < VALUE_MAX_BYTES
    record = record.with_(PastTruncation(at_ms=301, rule="minimum", bytes=1, cut={**wide, make_segment_id(0, 0): 1}))
    assert [(item.at_ms, item.cut is None) for item in record.truncations] == [(300, False), (301, True)]
