from . import Controller_pb2 as _Controller_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ("version", "store_id", "capabilities")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    version: str
    store_id: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., store_id: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ...) -> None: ...

class StreamRequest(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ...) -> None: ...

class StreamDescription(_message.Message):
    __slots__ = ("config", "epoch", "sealed", "segments", "head", "tail", "size_bytes", "written_bytes", "subscribers", "held_by", "disk_bytes", "pending_free_bytes", "freed_bytes")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PENDING_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    config: _Controller_pb2.StreamConfig
    epoch: int
    sealed: bool
    segments: _containers.RepeatedCompositeFieldContainer[_Controller_pb2.SegmentRange]
    head: _Controller_pb2.StreamCut
    tail: _Controller_pb2.StreamCut
    size_bytes: int
    written_bytes: int
    subscribers: _containers.RepeatedCompositeFieldContainer[Subscriber]
    held_by: str
    disk_bytes: int
    pending_free_bytes: int
    freed_bytes: int
    def __init__(self, config: _Optional[_Union[_Controller_pb2.StreamConfig, _Mapping]] = ..., epoch: _Optional[int] = ..., sealed: _Optional[bool] = ..., segments: _Optional[_Iterable[_Union[_Controller_pb2.SegmentRange, _Mapping]]] = ..., head: _Optional[_Union[_Controller_pb2.StreamCut, _Mapping]] = ..., tail: _Optional[_Union[_Controller_pb2.StreamCut, _Mapping]] = ..., size_bytes: _Optional[int] = ..., written_bytes: _Optional[int] = ..., subscribers: _Optional[_Iterable[_Union[Subscriber, _Mapping]]] = ..., held_by: _Optional[str] = ..., disk_bytes: _Optional[int] = ..., pending_free_bytes: _Optional[int] = ..., freed_bytes: _Optional[int] = ...) -> None: ...

class Subscriber(_message.Message):
    __slots__ = ("name", "generation", "cut", "updated_ms", "lag_bytes", "lag_events", "lag_ms", "held_bytes", "holes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_MS_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_EVENTS_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    cut: _Controller_pb2.StreamCut
    updated_ms: int
    lag_bytes: int
    lag_events: int
    lag_ms: int
    held_bytes: int
    holes: int
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., cut: _Optional[_Union[_Controller_pb2.StreamCut, _Mapping]] = ..., updated_ms: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_events: _Optional[int] = ..., lag_ms: _Optional[int] = ..., held_bytes: _Optional[int] = ..., holes: _Optional[int] = ...) -> None: ...

class SegmentRangesRequest(_message.Message):
    __slots__ = ("stream", "segments")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    segments: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., segments: _Optional[_Iterable[int]] = ...) -> None: ...

class EndpointRequest(_message.Message):
    __slots__ = ("segment",)
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    segment: str
    def __init__(self, segment: _Optional[str] = ...) -> None: ...

class RetentionDecision(_message.Message):
    __slots__ = ("json", "rule", "why", "frees_bytes", "truncate")
    class TruncateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JSON_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    FREES_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    json: str
    rule: str
    why: str
    frees_bytes: int
    truncate: _containers.ScalarMap[str, int]
    def __init__(self, json: _Optional[str] = ..., rule: _Optional[str] = ..., why: _Optional[str] = ..., frees_bytes: _Optional[int] = ..., truncate: _Optional[_Mapping[str, int]] = ...) -> None: ...

class CommitBatchRequest(_message.Message):
    __slots__ = ("stream", "writer", "batch", "transactions")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    writer: str
    batch: int
    transactions: _containers.RepeatedCompositeFieldContainer[_Controller_pb2.TxnId]
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., writer: _Optional[str] = ..., batch: _Optional[int] = ..., transactions: _Optional[_Iterable[_Union[_Controller_pb2.TxnId, _Mapping]]] = ...) -> None: ...

class CommitBatchResponse(_message.Message):
    __slots__ = ("committed",)
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    committed: bool
    def __init__(self, committed: _Optional[bool] = ...) -> None: ...

class LastBatchRequest(_message.Message):
    __slots__ = ("stream", "writer")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    writer: str
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., writer: _Optional[str] = ...) -> None: ...

class LastBatchResponse(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: int
    def __init__(self, batch: _Optional[int] = ...) -> None: ...

class ListReaderGroupsRequest(_message.Message):
    __slots__ = ("scope",)
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    scope: str
    def __init__(self, scope: _Optional[str] = ...) -> None: ...

class ListReaderGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, groups: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteReaderGroupRequest(_message.Message):
    __slots__ = ("scope", "group", "group_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    scope: str
    group: str
    group_id: str
    def __init__(self, scope: _Optional[str] = ..., group: _Optional[str] = ..., group_id: _Optional[str] = ...) -> None: ...

class UpdateSubscriberCutRequest(_message.Message):
    __slots__ = ("subscriber", "group_id", "generation", "cut")
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    subscriber: str
    group_id: str
    generation: int
    cut: _Controller_pb2.StreamCut
    def __init__(self, subscriber: _Optional[str] = ..., group_id: _Optional[str] = ..., generation: _Optional[int] = ..., cut: _Optional[_Union[_Controller_pb2.StreamCut, _Mapping]] = ...) -> None: ...

class ChunkRangesRequest(_message.Message):
    __slots__ = ("segment", "start", "end")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    segment: str
    start: int
    end: int
    def __init__(self, segment: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ChunkRange(_message.Message):
    __slots__ = ("name", "location", "start_offset", "end_offset", "block_gap", "block_length", "block_crc32c", "block_event_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BLOCK_GAP_FIELD_NUMBER: _ClassVar[int]
    BLOCK_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_CRC32C_FIELD_NUMBER: _ClassVar[int]
    BLOCK_EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    location: str
    start_offset: int
    end_offset: int
    block_gap: _containers.RepeatedScalarFieldContainer[int]
    block_length: _containers.RepeatedScalarFieldContainer[int]
    block_crc32c: _containers.RepeatedScalarFieldContainer[int]
    block_event_count: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., location: _Optional[str] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., block_gap: _Optional[_Iterable[int]] = ..., block_length: _Optional[_Iterable[int]] = ..., block_crc32c: _Optional[_Iterable[int]] = ..., block_event_count: _Optional[_Iterable[int]] = ...) -> None: ...

class ChunkRangesResponse(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[ChunkRange]
    def __init__(self, ranges: _Optional[_Iterable[_Union[ChunkRange, _Mapping]]] = ...) -> None: ...

class LeaseChunksRequest(_message.Message):
    __slots__ = ("segment", "lease", "until_ms")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    segment: str
    lease: str
    until_ms: int
    def __init__(self, segment: _Optional[str] = ..., lease: _Optional[str] = ..., until_ms: _Optional[int] = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: str
    def __init__(self, lease: _Optional[str] = ...) -> None: ...

class SpacesRequest(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, segments: _Optional[_Iterable[str]] = ...) -> None: ...

class SpacesResponse(_message.Message):
    __slots__ = ("spaces",)
    class Space(_message.Message):
        __slots__ = ("segment", "live_bytes", "tiered_bytes", "pending_free_bytes", "freed_bytes", "kept_bytes", "leased_bytes", "leased_until_ms", "partial_bytes")
        SEGMENT_FIELD_NUMBER: _ClassVar[int]
        LIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
        TIERED_BYTES_FIELD_NUMBER: _ClassVar[int]
        PENDING_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
        FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
        KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
        LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
        LEASED_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
        PARTIAL_BYTES_FIELD_NUMBER: _ClassVar[int]
        segment: str
        live_bytes: int
        tiered_bytes: int
        pending_free_bytes: int
        freed_bytes: int
        kept_bytes: int
        leased_bytes: int
        leased_until_ms: int
        partial_bytes: int
        def __init__(self, segment: _Optional[str] = ..., live_bytes: _Optional[int] = ..., tiered_bytes: _Optional[int] = ..., pending_free_bytes: _Optional[int] = ..., freed_bytes: _Optional[int] = ..., kept_bytes: _Optional[int] = ..., leased_bytes: _Optional[int] = ..., leased_until_ms: _Optional[int] = ..., partial_bytes: _Optional[int] = ...) -> None: ...
    SPACES_FIELD_NUMBER: _ClassVar[int]
    spaces: _containers.RepeatedCompositeFieldContainer[SpacesResponse.Space]
    def __init__(self, spaces: _Optional[_Iterable[_Union[SpacesResponse.Space, _Mapping]]] = ...) -> None: ...

class JsonAnswer(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("stream", "change", "at_ms")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    change: str
    at_ms: int
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., change: _Optional[str] = ..., at_ms: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("stream", "position")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    position: _Controller_pb2.StreamCut
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., position: _Optional[_Union[_Controller_pb2.StreamCut, _Mapping]] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("scope", "stream", "server")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    scope: str
    stream: str
    server: bool
    def __init__(self, scope: _Optional[str] = ..., stream: _Optional[str] = ..., server: _Optional[bool] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("target", "json")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    target: Target
    json: str
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., json: _Optional[str] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("id", "target", "owner", "reason", "created_ms", "until_ms", "cut")
    ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    id: str
    target: Target
    owner: str
    reason: str
    created_ms: int
    until_ms: int
    cut: _Controller_pb2.StreamCut
    def __init__(self, id: _Optional[str] = ..., target: _Optional[_Union[Target, _Mapping]] = ..., owner: _Optional[str] = ..., reason: _Optional[str] = ..., created_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., cut: _Optional[_Union[_Controller_pb2.StreamCut, _Mapping]] = ...) -> None: ...

class Holds(_message.Message):
    __slots__ = ("holds",)
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    holds: _containers.RepeatedCompositeFieldContainer[Hold]
    def __init__(self, holds: _Optional[_Iterable[_Union[Hold, _Mapping]]] = ...) -> None: ...

class AddHoldRequest(_message.Message):
    __slots__ = ("target", "owner", "reason", "until_ms", "cut", "id")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    target: Target
    owner: str
    reason: str
    until_ms: int
    cut: _Controller_pb2.StreamCut
    id: str
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., owner: _Optional[str] = ..., reason: _Optional[str] = ..., until_ms: _Optional[int] = ..., cut: _Optional[_Union[_Controller_pb2.StreamCut, _Mapping]] = ..., id: _Optional[str] = ...) -> None: ...

class ReleaseHoldRequest(_message.Message):
    __slots__ = ("id", "owner")
    ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    id: str
    owner: str
    def __init__(self, id: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class Subscribers(_message.Message):
    __slots__ = ("subscribers",)
    SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    subscribers: _containers.RepeatedCompositeFieldContainer[Subscriber]
    def __init__(self, subscribers: _Optional[_Iterable[_Union[Subscriber, _Mapping]]] = ...) -> None: ...

class SubscriberRequest(_message.Message):
    __slots__ = ("stream", "subscriber")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    subscriber: str
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., subscriber: _Optional[str] = ...) -> None: ...

class MoveSubscriberRequest(_message.Message):
    __slots__ = ("stream", "subscriber", "cut", "dry_run")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    subscriber: str
    cut: _Controller_pb2.StreamCut
    dry_run: bool
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., subscriber: _Optional[str] = ..., cut: _Optional[_Union[_Controller_pb2.StreamCut, _Mapping]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class CountEventsRequest(_message.Message):
    __slots__ = ("segment", "start", "end")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    segment: str
    start: int
    end: int
    def __init__(self, segment: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class CountEventsResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: int
    def __init__(self, events: _Optional[int] = ...) -> None: ...

class ScrubRequest(_message.Message):
    __slots__ = ("cursor", "max_bytes")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    max_bytes: int
    def __init__(self, cursor: _Optional[str] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ScrubResponse(_message.Message):
    __slots__ = ("cursor", "checked", "damage")
    class CheckedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    checked: _containers.ScalarMap[str, int]
    damage: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cursor: _Optional[str] = ..., checked: _Optional[_Mapping[str, int]] = ..., damage: _Optional[_Iterable[str]] = ...) -> None: ...

class DiskRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DiskResponse(_message.Message):
    __slots__ = ("total_bytes", "free_bytes", "used_bytes", "budget_bytes")
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    total_bytes: int
    free_bytes: int
    used_bytes: int
    budget_bytes: int
    def __init__(self, total_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., budget_bytes: _Optional[int] = ...) -> None: ...
