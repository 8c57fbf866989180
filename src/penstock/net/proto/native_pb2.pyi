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

class UndoRequest(_message.Message):
    __slots__ = ("stream", "since_ms")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    since_ms: int
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., since_ms: _Optional[int] = ...) -> None: ...

class DeleteStreamRequest(_message.Message):
    __slots__ = ("stream", "seal")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    seal: bool
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., seal: _Optional[bool] = ...) -> None: ...

class RestoreStreamRequest(_message.Message):
    __slots__ = ("stream", "incarnation")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    incarnation: int
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., incarnation: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("name", "generation", "cut", "updated_ms", "lag_bytes", "lag_events", "lag_ms", "held_bytes", "holes", "query", "owner")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_MS_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_EVENTS_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    cut: _Controller_pb2.StreamCut
    updated_ms: int
    lag_bytes: int
    lag_events: int
    lag_ms: int
    held_bytes: int
    holes: int
    query: str
    owner: str
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., cut: _Optional[_Union[_Controller_pb2.StreamCut, _Mapping]] = ..., updated_ms: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_events: _Optional[int] = ..., lag_ms: _Optional[int] = ..., held_bytes: _Optional[int] = ..., holes: _Optional[int] = ..., query: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("stream", "writer", "batch", "transactions", "source", "one_job")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ONE_JOB_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    writer: str
    batch: int
    transactions: _containers.RepeatedCompositeFieldContainer[_Controller_pb2.TxnId]
    source: QuerySource
    one_job: bool
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., writer: _Optional[str] = ..., batch: _Optional[int] = ..., transactions: _Optional[_Iterable[_Union[_Controller_pb2.TxnId, _Mapping]]] = ..., source: _Optional[_Union[QuerySource, _Mapping]] = ..., one_job: _Optional[bool] = ...) -> None: ...

class QuerySource(_message.Message):
    __slots__ = ("query", "run", "replaces", "unordered")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    UNORDERED_FIELD_NUMBER: _ClassVar[int]
    query: str
    run: str
    replaces: str
    unordered: bool
    def __init__(self, query: _Optional[str] = ..., run: _Optional[str] = ..., replaces: _Optional[str] = ..., unordered: _Optional[bool] = ...) -> None: ...

class CommitBatchResponse(_message.Message):
    __slots__ = ("committed",)
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    committed: bool
    def __init__(self, committed: _Optional[bool] = ...) -> None: ...

class JoinTransactionRequest(_message.Message):
    __slots__ = ("stream", "key", "lease_ms")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    key: str
    lease_ms: int
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., key: _Optional[str] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class JoinTransactionResponse(_message.Message):
    __slots__ = ("transaction", "segments")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    transaction: _Controller_pb2.TxnId
    segments: _containers.RepeatedCompositeFieldContainer[_Controller_pb2.SegmentRange]
    def __init__(self, transaction: _Optional[_Union[_Controller_pb2.TxnId, _Mapping]] = ..., segments: _Optional[_Iterable[_Union[_Controller_pb2.SegmentRange, _Mapping]]] = ...) -> None: ...

class CommitEventsRequest(_message.Message):
    __slots__ = ("stream", "transaction", "blocks")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    transaction: _Controller_pb2.TxnId
    blocks: _containers.RepeatedCompositeFieldContainer[EventBlock]
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., transaction: _Optional[_Union[_Controller_pb2.TxnId, _Mapping]] = ..., blocks: _Optional[_Iterable[_Union[EventBlock, _Mapping]]] = ...) -> None: ...

class EventBlock(_message.Message):
    __slots__ = ("segment", "writer", "events", "data")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    segment: int
    writer: bytes
    events: int
    data: bytes
    def __init__(self, segment: _Optional[int] = ..., writer: _Optional[bytes] = ..., events: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class CommitEventsResponse(_message.Message):
    __slots__ = ("committed",)
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    committed: bool
    def __init__(self, committed: _Optional[bool] = ...) -> None: ...

class GrantImportRequest(_message.Message):
    __slots__ = ("segment",)
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    segment: str
    def __init__(self, segment: _Optional[str] = ...) -> None: ...

class ImportGrant(_message.Message):
    __slots__ = ("prefix", "location", "marker", "appends", "chunk_bytes", "block_bytes")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    MARKER_FIELD_NUMBER: _ClassVar[int]
    APPENDS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    location: str
    marker: str
    appends: bool
    chunk_bytes: int
    block_bytes: int
    def __init__(self, prefix: _Optional[str] = ..., location: _Optional[str] = ..., marker: _Optional[str] = ..., appends: _Optional[bool] = ..., chunk_bytes: _Optional[int] = ..., block_bytes: _Optional[int] = ...) -> None: ...

class ImportedChunk(_message.Message):
    __slots__ = ("name", "size_bytes", "event_count", "index_crc32c")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    INDEX_CRC32C_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    event_count: int
    index_crc32c: int
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., event_count: _Optional[int] = ..., index_crc32c: _Optional[int] = ...) -> None: ...

class AdoptChunksRequest(_message.Message):
    __slots__ = ("segment", "offset", "chunks")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    segment: str
    offset: int
    chunks: _containers.RepeatedCompositeFieldContainer[ImportedChunk]
    def __init__(self, segment: _Optional[str] = ..., offset: _Optional[int] = ..., chunks: _Optional[_Iterable[_Union[ImportedChunk, _Mapping]]] = ...) -> None: ...

class AdoptChunksResponse(_message.Message):
    __slots__ = ("length",)
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    length: int
    def __init__(self, length: _Optional[int] = ...) -> None: ...

class LastBatchRequest(_message.Message):
    __slots__ = ("stream", "writer", "source")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    writer: str
    source: QuerySource
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., writer: _Optional[str] = ..., source: _Optional[_Union[QuerySource, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("subscriber", "group_id", "generation", "cut", "source")
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    subscriber: str
    group_id: str
    generation: int
    cut: _Controller_pb2.StreamCut
    source: QuerySource
    def __init__(self, subscriber: _Optional[str] = ..., group_id: _Optional[str] = ..., generation: _Optional[int] = ..., cut: _Optional[_Union[_Controller_pb2.StreamCut, _Mapping]] = ..., source: _Optional[_Union[QuerySource, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("name", "location", "start_offset", "end_offset", "block_gap", "block_length", "block_crc32c", "block_event_count", "block_time_ms", "block_span_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BLOCK_GAP_FIELD_NUMBER: _ClassVar[int]
    BLOCK_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_CRC32C_FIELD_NUMBER: _ClassVar[int]
    BLOCK_EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SPAN_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    location: str
    start_offset: int
    end_offset: int
    block_gap: _containers.RepeatedScalarFieldContainer[int]
    block_length: _containers.RepeatedScalarFieldContainer[int]
    block_crc32c: _containers.RepeatedScalarFieldContainer[int]
    block_event_count: _containers.RepeatedScalarFieldContainer[int]
    block_time_ms: _containers.RepeatedScalarFieldContainer[int]
    block_span_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., location: _Optional[str] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., block_gap: _Optional[_Iterable[int]] = ..., block_length: _Optional[_Iterable[int]] = ..., block_crc32c: _Optional[_Iterable[int]] = ..., block_event_count: _Optional[_Iterable[int]] = ..., block_time_ms: _Optional[_Iterable[int]] = ..., block_span_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class ChunkRangesResponse(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[ChunkRange]
    def __init__(self, ranges: _Optional[_Iterable[_Union[ChunkRange, _Mapping]]] = ...) -> None: ...

class LeaseChunksRequest(_message.Message):
    __slots__ = ("segment", "lease", "until_ms", "holder")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    segment: str
    lease: str
    until_ms: int
    holder: str
    def __init__(self, segment: _Optional[str] = ..., lease: _Optional[str] = ..., until_ms: _Optional[int] = ..., holder: _Optional[str] = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: str
    def __init__(self, lease: _Optional[str] = ...) -> None: ...

class FinishLeasePartRequest(_message.Message):
    __slots__ = ("lease", "part", "parts")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    lease: str
    part: int
    parts: int
    def __init__(self, lease: _Optional[str] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ...) -> None: ...

class SpacesRequest(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, segments: _Optional[_Iterable[str]] = ...) -> None: ...

class SpacesResponse(_message.Message):
    __slots__ = ("spaces",)
    class Space(_message.Message):
        __slots__ = ("segment", "live_bytes", "tiered_bytes", "pending_free_bytes", "freed_bytes", "kept_bytes", "leased_bytes", "leased_until_ms", "partial_bytes", "leases")
        SEGMENT_FIELD_NUMBER: _ClassVar[int]
        LIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
        TIERED_BYTES_FIELD_NUMBER: _ClassVar[int]
        PENDING_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
        FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
        KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
        LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
        LEASED_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
        PARTIAL_BYTES_FIELD_NUMBER: _ClassVar[int]
        LEASES_FIELD_NUMBER: _ClassVar[int]
        segment: str
        live_bytes: int
        tiered_bytes: int
        pending_free_bytes: int
        freed_bytes: int
        kept_bytes: int
        leased_bytes: int
        leased_until_ms: int
        partial_bytes: int
        leases: _containers.RepeatedCompositeFieldContainer[SpacesResponse.Lease]
        def __init__(self, segment: _Optional[str] = ..., live_bytes: _Optional[int] = ..., tiered_bytes: _Optional[int] = ..., pending_free_bytes: _Optional[int] = ..., freed_bytes: _Optional[int] = ..., kept_bytes: _Optional[int] = ..., leased_bytes: _Optional[int] = ..., leased_until_ms: _Optional[int] = ..., partial_bytes: _Optional[int] = ..., leases: _Optional[_Iterable[_Union[SpacesResponse.Lease, _Mapping]]] = ...) -> None: ...
    class Lease(_message.Message):
        __slots__ = ("id", "until_ms", "holder")
        ID_FIELD_NUMBER: _ClassVar[int]
        UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
        HOLDER_FIELD_NUMBER: _ClassVar[int]
        id: str
        until_ms: int
        holder: str
        def __init__(self, id: _Optional[str] = ..., until_ms: _Optional[int] = ..., holder: _Optional[str] = ...) -> None: ...
    SPACES_FIELD_NUMBER: _ClassVar[int]
    spaces: _containers.RepeatedCompositeFieldContainer[SpacesResponse.Space]
    def __init__(self, spaces: _Optional[_Iterable[_Union[SpacesResponse.Space, _Mapping]]] = ...) -> None: ...

class SegmentInfosRequest(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, segments: _Optional[_Iterable[str]] = ...) -> None: ...

class SegmentInfo(_message.Message):
    __slots__ = ("segment", "start_offset", "length", "sealed", "last_modified_ms", "kept_offset", "event_count")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    LAST_MODIFIED_MS_FIELD_NUMBER: _ClassVar[int]
    KEPT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    segment: str
    start_offset: int
    length: int
    sealed: bool
    last_modified_ms: int
    kept_offset: int
    event_count: int
    def __init__(self, segment: _Optional[str] = ..., start_offset: _Optional[int] = ..., length: _Optional[int] = ..., sealed: _Optional[bool] = ..., last_modified_ms: _Optional[int] = ..., kept_offset: _Optional[int] = ..., event_count: _Optional[int] = ...) -> None: ...

class SegmentInfosResponse(_message.Message):
    __slots__ = ("infos",)
    INFOS_FIELD_NUMBER: _ClassVar[int]
    infos: _containers.RepeatedCompositeFieldContainer[SegmentInfo]
    def __init__(self, infos: _Optional[_Iterable[_Union[SegmentInfo, _Mapping]]] = ...) -> None: ...

class MeasureRequest(_message.Message):
    __slots__ = ("stream", "start", "end")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    start: _Controller_pb2.StreamCut
    end: _Controller_pb2.StreamCut
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., start: _Optional[_Union[_Controller_pb2.StreamCut, _Mapping]] = ..., end: _Optional[_Union[_Controller_pb2.StreamCut, _Mapping]] = ...) -> None: ...

class SegmentSpan(_message.Message):
    __slots__ = ("segment", "start", "end", "events")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    segment: int
    start: int
    end: int
    events: int
    def __init__(self, segment: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., events: _Optional[int] = ...) -> None: ...

class MeasureResponse(_message.Message):
    __slots__ = ("spans",)
    SPANS_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[SegmentSpan]
    def __init__(self, spans: _Optional[_Iterable[_Union[SegmentSpan, _Mapping]]] = ...) -> None: ...

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

class ErasedRangesRequest(_message.Message):
    __slots__ = ("segment", "start", "end")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    segment: str
    start: int
    end: int
    def __init__(self, segment: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ErasedRangesResponse(_message.Message):
    __slots__ = ("bounds",)
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, bounds: _Optional[_Iterable[int]] = ...) -> None: ...

class EraseRequest(_message.Message):
    __slots__ = ("stream", "json", "positions", "page", "last", "dry_run")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    json: str
    positions: _containers.RepeatedCompositeFieldContainer[SegmentOffsets]
    page: int
    last: bool
    dry_run: bool
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ..., json: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[SegmentOffsets, _Mapping]]] = ..., page: _Optional[int] = ..., last: _Optional[bool] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class SegmentOffsets(_message.Message):
    __slots__ = ("segment", "offsets")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    segment: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, segment: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class ErasureRequest(_message.Message):
    __slots__ = ("id", "part")
    ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    id: str
    part: int
    def __init__(self, id: _Optional[str] = ..., part: _Optional[int] = ...) -> None: ...

class WithdrawErasureRequest(_message.Message):
    __slots__ = ("id", "who", "why")
    ID_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    id: str
    who: str
    why: str
    def __init__(self, id: _Optional[str] = ..., who: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class ErasuresRequest(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: _Controller_pb2.StreamInfo
    def __init__(self, stream: _Optional[_Union[_Controller_pb2.StreamInfo, _Mapping]] = ...) -> None: ...
