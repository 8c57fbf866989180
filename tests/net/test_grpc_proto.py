"""The interfaces as they are written: generated code is current, numbers are Pravega's, the page names every call."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from penstock.net.proto import Controller_pb2 as pb
from penstock.net.proto import generate

# Numbers of Pravega's fields. A client of theirs reads nonsense where one differs.
NUMBERS = """
StreamInfo: scope stream accessOperation
ScopeInfo: scope
SegmentId: streamInfo segmentId
SegmentRange: segmentId minKey maxKey
SegmentRanges: segmentRanges delegationToken
NodeUri: endpoint port
ContinuationToken: token
StreamCut: streamInfo cut
StreamCutRange: streamInfo from to
TxnId: highBits lowBits
Tags: tag
ScalingPolicy: scaleType targetRate scaleFactor minNumSegments
RetentionPolicy: retentionType retentionParam retentionMax
StreamConfig: streamInfo scalingPolicy retentionPolicy tags timestampAggregationTimeout rolloverSizeBytes
ServerResponse: nodeURI
ScopesResponse: scopes continuationToken
StreamsInScopeRequest: scope continuationToken
StreamsInScopeWithTagRequest: scope tag continuationToken
StreamsInScopeResponse: streams continuationToken status
GetEpochSegmentsRequest: streamInfo epoch
GetSegmentsRequest: streamInfo timestamp
SegmentsAtTime: segments delegationToken
SegmentsAtTime.SegmentLocation: segmentId offset
SuccessorResponse: segments delegationToken
SuccessorResponse.SegmentEntry: segment value
StreamCutRangeResponse: segments delegationToken
ScaleRequest: streamInfo sealedSegments newKeyRanges scaleTimestamp
ScaleRequest.KeyRangeEntry: start end
ScaleResponse: status segments epoch
ScaleStatusRequest: streamInfo epoch
CreateTxnRequest: streamInfo lease scaleGracePeriod
CreateTxnResponse: txnId activeSegments delegationToken
TxnRequest: streamInfo txnId writerId timestamp
PingTxnRequest: streamInfo txnId lease
ListCompletedTxnResponse: - response
ListCompletedTxnResponse.TxnResponse: txnId status
TimestampFromWriter: writer position timestamp
TimestampResponse: result
RemoveWriterRequest: writer stream
RemoveWriterResponse: result
KeyValueTableConfig: scope kvtName partitionCount primaryKeyLength secondaryKeyLength rolloverSizeBytes
KeyValueTableConfigResponse: config status
KVTablesInScopeResponse: kvtables continuationToken status
ReaderGroupConfiguration: scope readerGroupName groupRefreshTimeMillis automaticCheckpointIntervalMillis \
maxOutstandingCheckpointRequest retentionType generation readerGroupId startingStreamCuts endingStreamCuts \
rolloverSizeBytes
ReaderGroupInfo: scope readerGroup readerGroupId generation
CreateReaderGroupResponse: status config
UpdateReaderGroupResponse: status generation
ReaderGroupConfigResponse: config status
SubscribersResponse: subscribers status
SubscriberStreamCut: subscriber generation readerGroupId streamCut
"""

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "native-api.md"


@pytest.mark.parametrize("line", NUMBERS.strip().replace("\\\n", "").splitlines())
def test_fields_have_pravegas_numbers(line: str) -> None:
    name, _, fields = line.partition(":")
    descriptor = pb
    for part in name.split("."):
        descriptor = getattr(descriptor, part)
    expected = {field: number for number, field in enumerate(fields.split(), start=1) if field != "-"}
    assert {field.name: field.number for field in descriptor.DESCRIPTOR.fields} == expected


def test_a_stream_configuration_has_the_bytes_that_pravega_reads() -> None:
    message = pb.StreamConfig(
        streamInfo=pb.StreamInfo(scope="s", stream="t"),
        scalingPolicy=pb.ScalingPolicy(minNumSegments=2),
        retentionPolicy=pb.RetentionPolicy(retentionType=pb.RetentionPolicy.SIZE, retentionParam=5, retentionMax=300),
        tags=pb.Tags(tag=["x"]),
    )
    golden = "0a060a0173120174120220021a070802100518ac0222030a0178"
    assert message.SerializeToString().hex() == golden


def test_generated_code_is_what_the_interfaces_say(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    written = generate.generate(tmp_path)
    assert len(written) == 2
    for path in written:
        text = path.read_text()
        assert "penstock.net.proto import" not in text
        if path.name.endswith("_pb2.py"):
            assert _embedded(text) == _embedded((generate.DIRECTORY / path.name).read_text()), path.name


def _embedded(text: str) -> descriptor_pb2.FileDescriptorProto:
    match = re.search(r"AddSerializedFile\((b'.*')\)", text)
    assert match is not None
    return descriptor_pb2.FileDescriptorProto.FromString(ast.literal_eval(match[1]))


def test_generated_code_asks_for_no_more_than_the_oldest_runtime() -> None:
    oldest = ",".join(str(part) for part in generate.OLDEST_PROTOBUF)
    for path in sorted(generate.DIRECTORY.glob("*_pb2.py")):
        checked = re.search(r"Domain\.PUBLIC,\s+(\d+),\s+(\d+),\s+(\d+)", path.read_text())
        assert checked is not None
        assert ",".join(checked.groups()) == oldest
