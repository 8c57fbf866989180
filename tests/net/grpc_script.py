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
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.transactions import EventBlock

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
    ("scopes.exists", ("s",), {}),
    ("streams.create", (S, CONFIG), {}),
    ("scopes.create", ("s",), {}),
    ("scopes.create", ("s",), {}),
    ("scopes.create", ("not legal!",), {}),
    ("scopes.exists", ("s",), {}),
    ("scopes.list", (), {}),
    ("scopes.list", (), {"after": "s"}),
    ("streams.list", ("absent",), {}),
    ("streams.exists", (S,), {}),
    ("streams.create", (S, CONFIG), {}),
    ("streams.create", (S, CONFIG), {}),
    ("streams.create", (StreamName("s", "a_b"), StreamConfig()), {}),
    ("streams.create", (StreamName("s", "plain"), StreamConfig()), {}),
    ("streams.exists", (S,), {}),
    ("streams.config", (S,), {}),
    ("streams.config", (StreamName("s", "absent"),), {}),
    ("streams.config", (StreamName("absent", "absent"),), {}),
    ("streams.list", ("s",), {}),
    ("streams.list", ("s",), {"limit": 1}),
    ("streams.list", ("s",), {"after": "events"}),
    ("streams.list", ("s",), {"tag": "red"}),
    ("scopes.delete", ("s",), {}),
    ("scopes.delete", ("absent",), {}),
    ("streams.update", (StreamName("s", "plain"), CONFIG), {}),
    ("streams.update", (StreamName("s", "absent"), CONFIG), {}),
    ("streams.config", (StreamName("s", "plain"),), {}),
    ("layout.current", (S,), {}),
    ("layout.of_epoch", (S, 0), {}),
    ("layout.of_epoch", (S, 9), {}),
    ("cuts.head", (S,), {}),
    ("cuts.tail", (S,), {}),
    ("streams.truncate", (S, StreamCut(S, {FIRST: 10, SECOND: 0, THIRD: 1 << 50})), {}),
    ("streams.truncate", (S, StreamCut(S, {make_segment_id(7, 7): 10})), {}),
    ("cuts.head", (S,), {}),
    ("layout.is_active", (S, FIRST), {}),
    ("layout.is_active", (S, make_segment_id(3, 9)), {}),
    ("cuts.is_valid", (S, StreamCut(S, {FIRST: 0, SECOND: -1})), {}),
    (
        "layout.scale",
        (S,),
        {"sealed": [FIRST], "new_ranges": [KeyRange(low=0.0, high=0.1), KeyRange(low=0.1, high=1 / 3)]},
    ),
    ("layout.scale", (S,), {"sealed": [FIRST], "new_ranges": [KeyRange(low=0.0, high=1 / 3)]}),
    ("layout.scale_status", (S, 0), {}),
    ("layout.scale_status", (S, 1), {}),
    ("layout.scale_status", (S, 2), {}),
    ("layout.current", (S,), {}),
    ("layout.epochs", (S,), {}),
    ("layout.epochs", (StreamName("s", "absent"),), {}),
    ("layout.successors", (S, FIRST), {}),
    ("layout.successors", (S, SECOND), {}),
    ("cuts.segments_between", (S, StreamCut(S, {}), StreamCut(S, {})), {}),
    ("cuts.before", (S, StreamCut(S, {FIRST: 3}), 2), {}),
    ("cuts.before", (S, StreamCut(S, {FIRST: 3}), -2), {}),
    ("cuts.measure", (S, StreamCut(S, {FIRST: 3}), StreamCut(S, {})), {}),
    ("cuts.measure", (S, StreamCut(S, {FIRST: 3}), StreamCut(S, {FIRST: 9})), {}),
    ("cuts.measure", (S, StreamCut(S, {}), StreamCut(S, {})), {}),
    ("cuts.segments_between", (S, StreamCut(S, {make_segment_id(1, 3): 0}), StreamCut(S, {FIRST: 0})), {}),
    ("cuts.note_time", (S, "w", 5), {}),
    ("cuts.note_time", (S, "v", 7), {"position": StreamCut(S, {FIRST: 3})}),
    ("cuts.note_time", (S, "w", 4), {}),
    ("cuts.time_window", (StreamCut(S, {FIRST: 3}),), {"place": 8}),
    ("cuts.remove_writer", (S, "w"), {}),
    ("cuts.time_window", (StreamCut(S, {FIRST: 3}),), {}),
    ("layout.ranges", (S, [SECOND, FIRST]), {}),
    ("layout.ranges", (S, [SECOND, make_segment_id(9, 9)]), {}),
    ("layout.endpoint", ("s/events/0.#epoch.0#transaction.00000000000000000000000000000001",), {}),
    ("transactions.create", (S,), {"lease_ms": 20_000}),
    ("transactions.create", (S,), {"lease_ms": 1}),
    ("transactions.create", (S,), {"lease_ms": 20_000}),
    ("transactions.join", (S, UNKNOWN_TXN), {"lease_ms": 20_000}),
    ("transactions.join", (S, UNKNOWN_TXN), {"lease_ms": 20_000}),
    ("transactions.join", (S, UNKNOWN_TXN), {"lease_ms": 1}),
    ("transactions.ping", (S, TXN), {"lease_ms": 20_000}),
    ("transactions.ping", (S, TXN), {"lease_ms": 10_000_000}),
    ("transactions.ping", (S, UNKNOWN_TXN), {"lease_ms": 20_000}),
    ("transactions.status", (S, TXN), {}),
    ("transactions.commit", (S, UNKNOWN_TXN), {"blocks": [BLOCK]}),
    ("transactions.commit", (S, TXN), {"blocks": [BLOCK]}),
    ("transactions.commit", (S, TXN), {"blocks": [BLOCK]}),
    ("transactions.commit", (S, TXN), {}),
    ("transactions.commit", (S, TXN), {}),
    ("transactions.abort", (S, TXN), {}),
    ("transactions.commit", (S, UNKNOWN_TXN), {}),
    ("transactions.abort", (S, TXN_2), {}),
    ("transactions.ping", (S, TXN), {"lease_ms": 20_000}),
    ("transactions.ping", (S, TXN_2), {"lease_ms": 20_000}),
    ("transactions.status", (S, TXN_2), {}),
    ("transactions.status", (S, UNKNOWN_TXN), {}),
    ("transactions.list_completed", (S,), {}),
    ("batches.last", (S,), {"writer": "w"}),
    ("batches.commit", (S,), {"writer": "w", "batch": 0, "transactions": [TXN]}),
    ("batches.commit", (S,), {"writer": "w", "batch": 0, "transactions": [TXN_2]}),
    ("batches.commit", (S,), {"writer": "w", "batch": 1, "transactions": [UNKNOWN_TXN]}),
    ("batches.last", (S,), {"writer": "w"}),
    ("groups.create", (GROUP,), {}),
    ("groups.create", (GROUP,), {}),
    ("groups.get", ("s", "g"), {}),
    ("groups.get", ("s", "absent"), {}),
    ("groups.list", ("s",), {}),
    ("groups.list", ("absent",), {}),
    ("subscribers.list", (S,), {}),
    ("subscribers.list", (StreamName("s", "absent"),), {}),
    ("streams.describe", (S,), {}),
    ("subscribers.publish", ("s/g",), {"group_id": GROUP.id, "generation": 0, "cut": StreamCut(S, {SECOND: 5})}),
    ("subscribers.publish", ("s/g",), {"group_id": None, "generation": None, "cut": StreamCut(S, {SECOND: 6})}),
    ("subscribers.publish", ("s/g",), {"group_id": None, "generation": 4, "cut": StreamCut(S, {SECOND: 6})}),
    ("subscribers.publish", ("s/g",), {"group_id": TXN, "generation": 0, "cut": StreamCut(S, {SECOND: 6})}),
    ("subscribers.publish", ("s/x",), {"group_id": None, "generation": 0, "cut": StreamCut(S, {SECOND: 6})}),
    (
        "subscribers.publish",
        ("s/g",),
        {"group_id": None, "generation": 0, "cut": StreamCut(S, {make_segment_id(9, 9): 6})},
    ),
    ("streams.describe", (S,), {}),
    ("groups.update", (GROUP,), {}),
    ("groups.update", (GROUP,), {}),
    ("groups.delete", ("s", "g"), {"group_id": TXN}),
    ("groups.delete", ("s", "g"), {}),
    ("groups.delete", ("s", "g"), {"group_id": GROUP.id}),
    ("retention.run", (S,), {}),
    ("retention.explain", (S,), {}),
    ("retention.explain", (StreamName("s", "absent"),), {}),
    ("retention.explain", (S,), {"position": StreamCut(S, {FIRST: 7})}),
    ("retention.plan", (S,), {}),
    ("retention.plan", (S,), {"change": DOCUMENT, "at_ms": 5}),
    ("retention.facts", (S,), {}),
    ("retention.facts", (StreamName("s", "absent"),), {}),
    ("retention.facts", (S,), {"change": DOCUMENT}),
    ("retention.reclaim", (S,), {}),
    ("retention.forecast", (S,), {}),
    ("retention.list_evictions", (S,), {}),
    ("streams.list_deleted", (), {}),
    ("streams.list_deleted", ("s",), {}),
    ("streams.restore", (S,), {}),
    ("streams.restore", (S,), {"incarnation": 4}),
    ("streams.restore", (StreamName("s", "absent"),), {}),
    *((f"evidence.{name}", (), {}) for name in ("log", "rotate_key", "checkpoint", "checkpoints", "export")),
    ("evidence.consistency", (3,), {}),
    ("evidence.erasure", ("e",), {}),
    ("evidence.disposal", (S,), {}),
    ("evidence.disposal", ("s",), {"from_ms": 1, "to_ms": 2}),
    ("evidence.hold", ("h",), {}),
    ("retention.undo_last", (S,), {}),
    ("retention.undo", (S,), {}),
    ("retention.undo", (S,), {"since_ms": 5}),
    ("policies.get", (S,), {}),
    ("policies.set", (S, DOCUMENT), {}),
    ("policies.get", (S,), {}),
    ("policies.set", ("s", DOCUMENT), {}),
    ("policies.get", ("s",), {}),
    ("policies.set", (None, EMPTY), {}),
    ("policies.get", (None,), {}),
    ("holds.list", (None,), {}),
    ("policies.get", (StreamName("s", "absent"),), {}),
    ("policies.effective", (S,), {}),
    ("holds.add", (S,), {"owner": "legal", "reason": "case 7", "hold_id": "h"}),
    ("holds.add", (S,), {"owner": "legal", "reason": "case 7", "hold_id": "h"}),
    ("holds.add", ("s",), {"owner": "o", "reason": "r", "until_ms": 9, "cut": StreamCut(S, {FIRST: 3})}),
    ("holds.list", (), {}),
    ("holds.list", (S,), {}),
    ("holds.list", ("other",), {}),
    ("holds.release", ("h",), {"owner": "else"}),
    ("holds.release", ("h",), {"owner": "else"}),
    ("subscribers.describe", (S,), {}),
    ("subscribers.move", (S, "s/g", StreamCut(S, {})), {"dry_run": True}),
    ("subscribers.move", (S, "s/x", StreamCut(S, {FIRST: 1})), {}),
    ("subscribers.remove", (S, "s/x"), {}),
    ("subscribers.remove", (S, "s/g"), {}),
    ("streams.delete", (S,), {}),
    ("streams.seal", (S,), {}),
    ("streams.seal", (S,), {}),
    ("streams.seal", (StreamName("s", "absent"),), {}),
    ("streams.update", (S, CONFIG), {}),
    ("streams.truncate", (S, StreamCut(S, {FIRST: 10})), {}),
    ("layout.scale", (S,), {"sealed": [], "new_ranges": []}),
    ("transactions.create", (S,), {"lease_ms": 20_000}),
    ("layout.current", (S,), {}),
    ("streams.delete", (S,), {}),
    ("streams.delete", (S,), {}),
    ("streams.seal", (StreamName("s", "plain"),), {}),
    ("streams.delete", (StreamName("s", "plain"),), {}),
    ("scopes.delete", ("s",), {}),
    ("scopes.list", (), {}),
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
