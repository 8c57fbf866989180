"""Each call of the controller once, with what a scripted controller answers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any
from uuid import UUID

from grpc_fakes import raised

from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    PenstockError,
)
from penstock.model.names import StreamName
from penstock.model.policies import (
    ReaderGroupRetention,
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)
from penstock.model.retention import EMPTY, Backlog, Combine, OnExceed, PolicyDocument, Retain
from penstock.model.segments import KeyRange, make_segment_id
from penstock.ports.controller_service import EventBlock, ReaderGroupConfig

S = StreamName("s", "events")
TXN = UUID(int=(0x8000_0000_0000_0001 << 64) + 1)
TXN_2 = UUID(int=(0x8000_0000_0000_0001 << 64) + 2)
UNKNOWN_TXN = UUID(int=99)
GROUP = ReaderGroupConfig(
    scope="s",
    name="g",
    id=UUID(int=5),
    retention=ReaderGroupRetention.MANUAL,
    start_cuts={S: StreamCut(S, {})},
    end_cuts={S: StreamCut(S, {make_segment_id(0, 1): 77})},
    refresh_ms=1,
    checkpoint_interval_ms=2,
    max_outstanding_checkpoints=4,
    rollover_bytes=1 << 40,
)
CONFIG = StreamConfig(
    scaling=ScalingPolicy(type=ScaleType.EVENTS_PER_S, target_rate=100, factor=2, min_segments=3),
    retention=RetentionPolicy(type=RetentionType.SIZE, minimum=10, maximum=50),
    tags=("red", "blue"),
    timestamp_aggregation_ms=7,
    rollover_bytes=1 << 33,
)
FIRST, SECOND, THIRD = (make_segment_id(0, number) for number in range(3))
BLOCK = EventBlock(segment=FIRST, writer=UUID(int=(1 << 128) - 1), event_count=3, data=b"three events")
DOCUMENT = PolicyDocument(
    retain=Retain(min_bytes=5, min_age_s=1.5, combine=Combine.ALL, max_bytes=None),
    backlog=Backlog(ttl_s=60, on_exceed=OnExceed.REJECT, evict_to=0.25),
    grace_s=0,
)


# A life of a stream, with every mistake on the way: (call, arguments, keywords).
SCRIPT: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("scope_exists", ("s",), {}),
    ("create_stream", (S, CONFIG), {}),
    ("create_scope", ("s",), {}),
    ("create_scope", ("s",), {}),
    ("create_scope", ("not legal!",), {}),
    ("scope_exists", ("s",), {}),
    ("list_scopes", (), {}),
    ("list_scopes", (), {"after": "s"}),
    ("list_streams", ("absent",), {}),
    ("stream_exists", (S,), {}),
    ("create_stream", (S, CONFIG), {}),
    ("create_stream", (S, CONFIG), {}),
    ("create_stream", (StreamName("s", "a_b"), StreamConfig()), {}),
    ("create_stream", (StreamName("s", "plain"), StreamConfig()), {}),
    ("stream_exists", (S,), {}),
    ("get_config", (S,), {}),
    ("get_config", (StreamName("s", "absent"),), {}),
    ("get_config", (StreamName("absent", "absent"),), {}),
    ("list_streams", ("s",), {}),
    ("list_streams", ("s",), {"limit": 1}),
    ("list_streams", ("s",), {"after": "events"}),
    ("list_streams", ("s",), {"tag": "red"}),
    ("delete_scope", ("s",), {}),
    ("delete_scope", ("absent",), {}),
    ("update_stream", (StreamName("s", "plain"), CONFIG), {}),
    ("update_stream", (StreamName("s", "absent"), CONFIG), {}),
    ("get_config", (StreamName("s", "plain"),), {}),
    ("current_segments", (S,), {}),
    ("epoch_segments", (S, 0), {}),
    ("epoch_segments", (S, 9), {}),
    ("head", (S,), {}),
    ("tail", (S,), {}),
    ("truncate_stream", (S, StreamCut(S, {FIRST: 10, SECOND: 0, THIRD: 1 << 50})), {}),
    ("truncate_stream", (S, StreamCut(S, {make_segment_id(7, 7): 10})), {}),
    ("head", (S,), {}),
    ("is_segment_active", (S, FIRST), {}),
    ("is_segment_active", (S, make_segment_id(3, 9)), {}),
    ("is_cut_valid", (S, StreamCut(S, {FIRST: 0, SECOND: -1})), {}),
    ("scale", (S,), {"sealed": [FIRST], "new_ranges": [KeyRange(low=0.0, high=0.1), KeyRange(low=0.1, high=1 / 3)]}),
    ("scale", (S,), {"sealed": [FIRST], "new_ranges": [KeyRange(low=0.0, high=1 / 3)]}),
    ("scale_status", (S, 0), {}),
    ("scale_status", (S, 1), {}),
    ("scale_status", (S, 2), {}),
    ("current_segments", (S,), {}),
    ("successors", (S, FIRST), {}),
    ("successors", (S, SECOND), {}),
    ("segments_between", (S, StreamCut(S, {}), StreamCut(S, {})), {}),
    ("measure", (S, StreamCut(S, {FIRST: 3}), StreamCut(S, {})), {}),
    ("measure", (S, StreamCut(S, {FIRST: 3}), StreamCut(S, {FIRST: 9})), {}),
    ("measure", (S, StreamCut(S, {}), StreamCut(S, {})), {}),
    ("segments_between", (S, StreamCut(S, {make_segment_id(1, 3): 0}), StreamCut(S, {FIRST: 0})), {}),
    ("segment_ranges", (S, [SECOND, FIRST]), {}),
    ("segment_ranges", (S, [SECOND, make_segment_id(9, 9)]), {}),
    ("endpoint", ("s/events/0.#epoch.0#transaction.00000000000000000000000000000001",), {}),
    ("create_transaction", (S,), {"lease_ms": 20_000}),
    ("create_transaction", (S,), {"lease_ms": 1}),
    ("create_transaction", (S,), {"lease_ms": 20_000}),
    ("join_transaction", (S, UNKNOWN_TXN), {"lease_ms": 20_000}),
    ("join_transaction", (S, UNKNOWN_TXN), {"lease_ms": 20_000}),
    ("join_transaction", (S, UNKNOWN_TXN), {"lease_ms": 1}),
    ("ping_transaction", (S, TXN), {"lease_ms": 20_000}),
    ("ping_transaction", (S, TXN), {"lease_ms": 10_000_000}),
    ("ping_transaction", (S, UNKNOWN_TXN), {"lease_ms": 20_000}),
    ("transaction_status", (S, TXN), {}),
    ("commit_transaction", (S, UNKNOWN_TXN), {"blocks": [BLOCK]}),
    ("commit_transaction", (S, TXN), {"blocks": [BLOCK]}),
    ("commit_transaction", (S, TXN), {"blocks": [BLOCK]}),
    ("commit_transaction", (S, TXN), {}),
    ("commit_transaction", (S, TXN), {}),
    ("abort_transaction", (S, TXN), {}),
    ("commit_transaction", (S, UNKNOWN_TXN), {}),
    ("abort_transaction", (S, TXN_2), {}),
    ("ping_transaction", (S, TXN), {"lease_ms": 20_000}),
    ("ping_transaction", (S, TXN_2), {"lease_ms": 20_000}),
    ("transaction_status", (S, TXN_2), {}),
    ("transaction_status", (S, UNKNOWN_TXN), {}),
    ("list_completed_transactions", (S,), {}),
    ("last_batch", (S,), {"writer": "w"}),
    ("commit_batch", (S,), {"writer": "w", "batch": 0, "transactions": [TXN]}),
    ("commit_batch", (S,), {"writer": "w", "batch": 0, "transactions": [TXN_2]}),
    ("commit_batch", (S,), {"writer": "w", "batch": 1, "transactions": [UNKNOWN_TXN]}),
    ("last_batch", (S,), {"writer": "w"}),
    ("create_reader_group", (GROUP,), {}),
    ("create_reader_group", (GROUP,), {}),
    ("get_reader_group", ("s", "g"), {}),
    ("get_reader_group", ("s", "absent"), {}),
    ("list_reader_groups", ("s",), {}),
    ("list_reader_groups", ("absent",), {}),
    ("list_subscribers", (S,), {}),
    ("list_subscribers", (StreamName("s", "absent"),), {}),
    ("describe_stream", (S,), {}),
    ("update_subscriber_cut", ("s/g",), {"group_id": GROUP.id, "generation": 0, "cut": StreamCut(S, {SECOND: 5})}),
    ("update_subscriber_cut", ("s/g",), {"group_id": None, "generation": None, "cut": StreamCut(S, {SECOND: 6})}),
    ("update_subscriber_cut", ("s/g",), {"group_id": None, "generation": 4, "cut": StreamCut(S, {SECOND: 6})}),
    ("update_subscriber_cut", ("s/g",), {"group_id": TXN, "generation": 0, "cut": StreamCut(S, {SECOND: 6})}),
    ("update_subscriber_cut", ("s/x",), {"group_id": None, "generation": 0, "cut": StreamCut(S, {SECOND: 6})}),
    (
        "update_subscriber_cut",
        ("s/g",),
        {"group_id": None, "generation": 0, "cut": StreamCut(S, {make_segment_id(9, 9): 6})},
    ),
    ("describe_stream", (S,), {}),
    ("update_reader_group", (GROUP,), {}),
    ("update_reader_group", (GROUP,), {}),
    ("delete_reader_group", ("s", "g"), {"group_id": TXN}),
    ("delete_reader_group", ("s", "g"), {}),
    ("delete_reader_group", ("s", "g"), {"group_id": GROUP.id}),
    ("run_retention", (S,), {}),
    ("explain_retention", (S,), {}),
    ("explain_retention", (StreamName("s", "absent"),), {}),
    ("explain_retention", (S,), {"position": StreamCut(S, {FIRST: 7})}),
    ("plan_retention", (S,), {}),
    ("plan_retention", (S,), {"change": DOCUMENT, "at_ms": 5}),
    ("retention_facts", (S,), {}),
    ("retention_facts", (StreamName("s", "absent"),), {}),
    ("retention_facts", (S,), {"change": DOCUMENT}),
    ("reclaim_report", (S,), {}),
    ("forecast_retention", (S,), {}),
    ("list_evictions", (S,), {}),
    ("list_deleted_streams", (), {}),
    ("list_deleted_streams", ("s",), {}),
    ("restore_stream", (S,), {}),
    ("restore_stream", (S,), {"incarnation": 4}),
    ("restore_stream", (StreamName("s", "absent"),), {}),
    ("undo_truncation", (S,), {}),
    ("undo_truncations", (S,), {}),
    ("undo_truncations", (S,), {"since_ms": 5}),
    ("get_policy", (S,), {}),
    ("set_policy", (S, DOCUMENT), {}),
    ("get_policy", (S,), {}),
    ("set_policy", ("s", DOCUMENT), {}),
    ("get_policy", ("s",), {}),
    ("set_policy", (None, EMPTY), {}),
    ("get_policy", (None,), {}),
    ("list_holds", (None,), {}),
    ("get_policy", (StreamName("s", "absent"),), {}),
    ("effective_policy", (S,), {}),
    ("add_hold", (S,), {"owner": "legal", "reason": "case 7", "hold_id": "h"}),
    ("add_hold", (S,), {"owner": "legal", "reason": "case 7", "hold_id": "h"}),
    ("add_hold", ("s",), {"owner": "o", "reason": "r", "until_ms": 9, "cut": StreamCut(S, {FIRST: 3})}),
    ("list_holds", (), {}),
    ("list_holds", (S,), {}),
    ("list_holds", ("other",), {}),
    ("release_hold", ("h",), {"owner": "else"}),
    ("release_hold", ("h",), {"owner": "else"}),
    ("describe_subscribers", (S,), {}),
    ("move_subscriber", (S, "s/g", StreamCut(S, {})), {"dry_run": True}),
    ("move_subscriber", (S, "s/x", StreamCut(S, {FIRST: 1})), {}),
    ("remove_subscriber", (S, "s/x"), {}),
    ("remove_subscriber", (S, "s/g"), {}),
    ("delete_stream", (S,), {}),
    ("seal_stream", (S,), {}),
    ("seal_stream", (S,), {}),
    ("seal_stream", (StreamName("s", "absent"),), {}),
    ("update_stream", (S, CONFIG), {}),
    ("truncate_stream", (S, StreamCut(S, {FIRST: 10})), {}),
    ("scale", (S,), {"sealed": [], "new_ranges": []}),
    ("create_transaction", (S,), {"lease_ms": 20_000}),
    ("current_segments", (S,), {}),
    ("delete_stream", (S,), {}),
    ("delete_stream", (S,), {}),
    ("seal_stream", (StreamName("s", "plain"),), {}),
    ("delete_stream", (StreamName("s", "plain"),), {}),
    ("delete_scope", ("s",), {}),
    ("list_scopes", (), {}),
]


async def outcome(step: Awaitable[Any]) -> Any:
    try:
        result = await step
    except PenstockError as error:
        kind, message, fields = raised(error)
        # JSON has no ids and no lists of ids: they arrive as text.
        return (
            kind,
            message,
            {
                name: value if isinstance(value, int | float | str | None) else str(value)
                for name, value in fields.items()
            },
        )
    return tuple(result) if isinstance(result, list) else result
