"""Pravega's REST interface, over the real controller and segment store in memory."""

from __future__ import annotations

import asyncio
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from rest_support import FIRST, Running, play

from penstock.model.cuts import StreamCut
from penstock.model.errors import UnavailableError
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import (
    LONG_MAX,
    ReaderGroupRetention,
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)
from penstock.model.segments import KeyRange, SegmentRange, make_segment_id
from penstock.net.http import pravega_documents as mapping
from penstock.net.http.reading_requests import Fields
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.layout import EpochInfo

S = StreamName("s", "events")
FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}
BY_RATE = {"type": "BY_RATE_IN_KBYTES_PER_SEC", "targetRate": 10, "scaleFactor": 2, "minSegments": 1}
DAY_MS = 86_400_000
MIB = 1 << 20


async def with_stream(run: Running, **fields: object) -> None:
    await run.expect(201, "POST", "/v1/scopes", {"scopeName": "s"})
    await run.expect(201, "POST", "/v1/scopes/s/streams", {"streamName": "events", "scalingPolicy": FIXED} | fields)


def test_a_scope_lives_from_creation_to_deletion() -> None:
    async def scene(run: Running) -> None:
        assert await run.expect(201, "POST", "/v1/scopes", {"scopeName": "s"}) == {"scopeName": "s"}
        assert (await run.expect(409, "POST", "/v1/scopes", {"scopeName": "s"}))["class"] == "AlreadyExistsError"
        assert await run.expect(200, "GET", "/v1/scopes/s") == {"scopeName": "s"}
        assert {"scopeName": "s"} in (await run.expect(200, "GET", "/v1/scopes"))["scopes"]
        await run.expect(201, "POST", "/v1/scopes/s/streams", {"streamName": "a"})
        assert (await run.expect(412, "DELETE", "/v1/scopes/s"))["class"] == "NotEmptyError"
        await run.expect(200, "PUT", "/v1/scopes/s/streams/a/state", {"streamState": "SEALED"})
        await run.expect(204, "DELETE", "/v1/scopes/s/streams/a")
        await run.expect(204, "DELETE", "/v1/scopes/s")
        for method in ("GET", "DELETE"):
            assert (await run.expect(404, method, "/v1/scopes/s"))["class"] == "ScopeNotFoundError"

    play(scene)


def test_a_stream_lives_from_creation_to_deletion() -> None:
    async def scene(run: Running) -> None:
        await with_stream(
            run, retentionPolicy={"type": "LIMITED_SIZE_MB", "value": 5, "maxValue": 50}, streamTags=["x"]
        )
        found = await run.expect(200, "GET", "/v1/scopes/s/streams/events")
        assert found == {
            "scopeName": "s",
            "streamName": "events",
            "scalingPolicy": FIXED,
            "retentionPolicy": {"type": "LIMITED_SIZE_MB", "value": 5},
            "tags": ["x"],
            "timestampAggregationTimeout": 0,
            "rolloverSizeBytes": 0,
        }
        stored = await run.controller.streams.config(S)
        assert stored.retention == RetentionPolicy(type=RetentionType.SIZE, minimum=5 * MIB, maximum=50 * MIB)
        assert (await run.expect(412, "DELETE", "/v1/scopes/s/streams/events"))["class"] == "StreamNotSealedError"
        answer = await run.expect(200, "PUT", "/v1/scopes/s/streams/events/state", {"streamState": "SEALED"})
        assert answer == {"streamState": "SEALED"}
        await run.expect(200, "PUT", "/v1/scopes/s/streams/events/state", {"streamState": "SEALED"})
        refused = await run.expect(409, "PUT", "/v1/scopes/s/streams/events", {"scalingPolicy": FIXED})
        assert refused["class"] == "StreamSealedError"
        await run.expect(204, "DELETE", "/v1/scopes/s/streams/events")
        await run.expect(404, "GET", "/v1/scopes/s/streams/events")

    play(scene)


def test_an_update_replaces_everything() -> None:
    async def scene(run: Running) -> None:
        await with_stream(
            run,
            retentionPolicy={"type": "LIMITED_DAYS", "value": 2},
            streamTags=["x", "y"],
            timestampAggregationTimeout=7,
            rolloverSizeBytes=9,
        )
        path = "/v1/scopes/s/streams/events"
        by_rate = {"type": "BY_RATE_IN_EVENTS_PER_SEC", "targetRate": 100, "scaleFactor": 3, "minSegments": 2}
        answer = await run.expect(200, "PUT", path, {"scalingPolicy": by_rate})
        assert answer["scalingPolicy"] == by_rate
        assert "retentionPolicy" not in answer
        assert await run.controller.streams.config(S) == StreamConfig(
            scaling=ScalingPolicy(type=ScaleType.EVENTS_PER_S, target_rate=100, factor=3, min_segments=2)
        )
        # More fixed segments scale the stream, at once.
        await run.expect(200, "PUT", path, {"scalingPolicy": FIXED | {"minSegments": 4}})
        assert len(await run.controller.layout.current(S)) == 4

    play(scene)


def test_what_was_answered_can_be_sent_again_and_frees_nothing() -> None:
    """A minimum of 30 seconds reads as no minutes at all; stored so, it would free everything."""

    async def scene(run: Running) -> None:
        await run.controller.scopes.create("s")
        exact = RetentionPolicy(type=RetentionType.TIME, minimum=30_000)
        config = StreamConfig(retention=exact, tags=("x",), rollover_bytes=3)
        await run.controller.streams.create(S, config)
        path = "/v1/scopes/s/streams/events"
        answer = await run.expect(200, "GET", path)
        assert answer["retentionPolicy"]["timeBasedRetention"] == {"days": 0, "hours": 0, "minutes": 0}
        assert await run.expect(200, "PUT", path, answer) == answer
        assert await run.controller.streams.config(S) == config

    play(scene)


def test_streams_are_listed_by_kind_and_by_tag() -> None:
    async def scene(run: Running) -> None:
        await run.expect(201, "POST", "/v1/scopes", {"scopeName": "s"})
        for name, tags in (("b", ["red"]), ("a", ["red", "blue"]), ("c", [])):
            await run.expect(201, "POST", "/v1/scopes/s/streams", {"streamName": name, "streamTags": tags})
        await run.controller.streams.create(StreamName("s", "_RGa"), StreamConfig())

        async def names(query: str = "") -> list[str]:
            found = await run.expect(200, "GET", f"/v1/scopes/s/streams{query}")
            return [item["streamName"] for item in found["streams"]]

        assert await names() == ["a", "b", "c"]
        internal = await names("?filter_type=showInternalStreams")
        assert "_RGa" in internal
        assert all(name.startswith("_") for name in internal)
        assert await names("?showInternalStreams=true") == internal
        assert await names("?showInternalStreams=false") == ["a", "b", "c"]
        assert await names("?filter_type=tag&filter_value=red") == ["a", "b"]
        assert await names("?filter_type=tag&filter_value=none") == []
        for query in ("?filter_type=tag", "?filter_type=size"):
            await run.expect(400, "GET", f"/v1/scopes/s/streams{query}")
        await run.expect(404, "GET", "/v1/scopes/none/streams")

    play(scene)


def test_a_long_list_is_answered_whole() -> None:
    async def scene(run: Running) -> None:
        await run.controller.scopes.create("s")
        names = [f"n{number:04}" for number in range(70)]
        for name in names:
            await run.controller.streams.create(StreamName("s", name), StreamConfig())
        found = await run.expect(200, "GET", "/v1/scopes/s/streams")
        assert [item["streamName"] for item in found["streams"]] == names

    play(scene)


def test_scaling_events_are_those_of_the_span_led_by_the_one_before() -> None:
    async def scene(run: Running) -> None:
        await with_stream(run)
        middle = [KeyRange(low=0.0, high=0.25), KeyRange(low=0.25, high=0.5)]
        await run.controller.layout.scale(S, sealed=[FIRST], new_ranges=middle)
        epochs = await run.controller.layout.epochs(S)
        assert [item.epoch for item in epochs] == [0, 1]
        path = "/v1/scopes/s/streams/events/scaling-events"
        first, second = await run.expect(200, "GET", f"{path}?from=0&to={LONG_MAX}")
        assert (first["splits"], first["merges"]) == (0, 0)
        assert (second["splits"], second["merges"]) == (1, 0)
        assert [(item["number"], item["epoch"]) for item in second["segments"]] == [(2, 1), (3, 1), (1, 0)]
        assert [(item["keyStart"], item["keyEnd"]) for item in second["segments"]] == [(0, 0.25), (0.25, 0.5), (0.5, 1)]
        assert second["segments"][2]["start"] == first["timestamp"]
        after = epochs[-1].created_ms + 1
        assert await run.expect(200, "GET", f"{path}?from={after}&to={after}") == [second]
        assert await run.expect(200, "GET", f"{path}?from=0&to=1") == []
        for query in ("", "?from=1", "?from=2&to=1", "?from=-1&to=1", "?from=x&to=1", "?from=1&to=9" + "9" * 30):
            await run.expect(400, "GET", path + query)
        await run.expect(404, "GET", "/v1/scopes/s/streams/none/scaling-events?from=0&to=1")

    play(scene)


def test_reader_groups_are_listed_shown_and_deleted() -> None:
    async def scene(run: Running) -> None:
        await with_stream(run)
        assert await run.expect(200, "GET", "/v1/scopes/s/readergroups") == {"readerGroups": []}
        await run.controller.groups.create(
            ReaderGroupConfig(
                scope="s",
                name="g",
                id=UUID(int=5),
                retention=ReaderGroupRetention.AUTOMATIC_AT_LAST_CHECKPOINT,
                start_cuts={S: StreamCut(S, {})},
            )
        )
        found = await run.expect(200, "GET", "/v1/scopes/s/readergroups")
        assert found == {"readerGroups": [{"readerGroupName": "g"}]}
        shown = {"scopeName": "s", "readerGroupName": "g", "streamList": ["events"]}
        assert await run.expect(200, "GET", "/v1/scopes/s/readergroups/g") == shown
        run.online["s/g"] = ["r1", "r2"]
        answer = await run.expect(200, "GET", "/v1/scopes/s/readergroups/g")
        assert answer == shown | {"onlineReaderIds": ["r1", "r2"]}
        await run.expect(204, "DELETE", "/v1/scopes/s/readergroups/g")
        await run.expect(404, "GET", "/v1/scopes/s/readergroups/g")
        await run.expect(404, "DELETE", "/v1/scopes/s/readergroups/g")
        await run.expect(404, "GET", "/v1/scopes/none/readergroups")

    play(scene)


CREATE = "/v1/scopes/s/streams"
BAD = [
    ("POST", "/v1/scopes", {}, "scopeName"),
    ("POST", "/v1/scopes", {"scopeName": 5}, "scopeName"),
    ("POST", "/v1/scopes", {"scopeName": "a_b"}, "letters, digits"),
    ("POST", "/v1/scopes", {"scopeName": "_system"}, "letters, digits"),
    ("POST", "/v1/scopes", {"scopeName": "a", "more": 1}, "not known"),
    ("POST", CREATE, {}, "streamName"),
    ("POST", CREATE, {"streamName": "_MARKx"}, "letters, digits"),
    ("POST", CREATE, {"streamName": "a/b"}, "letters, digits"),
    ("POST", CREATE, {"streamName": "a", "scopeName": "t"}, "differs from the one in the path"),
    ("POST", CREATE, {"streamName": "a", "scalingPolicy": {"type": "FIXED"}}, "scalingPolicy.type"),
    ("POST", CREATE, {"streamName": "a", "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS"}}, "scalingPolicy.minSegments"),
    ("POST", CREATE, {"streamName": "a", "scalingPolicy": FIXED | {"minSegments": 0}}, "segments"),
    ("POST", CREATE, {"streamName": "a", "scalingPolicy": FIXED | {"minSegments": 1.5}}, "scalingPolicy.minSegments"),
    ("POST", CREATE, {"streamName": "a", "scalingPolicy": FIXED | {"minSegments": True}}, "scalingPolicy.minSegments"),
    (
        "POST",
        CREATE,
        {"streamName": "a", "scalingPolicy": FIXED | {"minSegments": 1 << 40}},
        "scalingPolicy.minSegments",
    ),
    ("POST", CREATE, {"streamName": "a", "scalingPolicy": FIXED | {"type": "BY_RATE_IN_EVENTS_PER_SEC"}}, "rate"),
    ("POST", CREATE, {"streamName": "a", "scalingPolicy": BY_RATE | {"targetRate": 0}}, "rate"),
    ("POST", CREATE, {"streamName": "a", "scalingPolicy": BY_RATE | {"scaleFactor": 1}}, "factor"),
    ("POST", CREATE, {"streamName": "a", "scalingPolicy": BY_RATE | {"minSegments": 0}}, "segments"),
    ("POST", CREATE, {"streamName": "a", "scalingPolicy": BY_RATE | {"minSegments": 10_001}}, "segments"),
    ("PUT", f"{CREATE}/events", {"scalingPolicy": BY_RATE | {"targetRate": -1}}, "targetRate"),
    ("POST", CREATE, {"streamName": "a", "scalingPolicy": []}, "scalingPolicy"),
    ("POST", CREATE, {"streamName": "a", "retentionPolicy": {"value": 1}}, "retentionPolicy.type"),
    (
        "POST",
        CREATE,
        {"streamName": "a", "retentionPolicy": {"type": "CONSUMPTION", "value": 1}},
        "retentionPolicy.type",
    ),
    ("POST", CREATE, {"streamName": "a", "retentionPolicy": {"type": "LIMITED_SIZE_MB"}}, "retentionPolicy.value"),
    ("POST", CREATE, {"streamName": "a", "retentionPolicy": {"type": "LIMITED_SIZE_MB", "value": -1}}, "out of range"),
    (
        "POST",
        CREATE,
        {"streamName": "a", "retentionPolicy": {"type": "LIMITED_SIZE_MB", "value": 1 << 50}},
        "too large",
    ),
    (
        "POST",
        CREATE,
        {"streamName": "a", "retentionPolicy": {"type": "LIMITED_SIZE_MB", "value": 1, "timeBasedRetention": {}}},
        "timeBasedRetention",
    ),
    (
        "POST",
        CREATE,
        {"streamName": "a", "retentionPolicy": {"type": "LIMITED_SIZE_MB", "value": 2, "maxValue": 1}},
        "exceeds",
    ),
    (
        "POST",
        CREATE,
        {"streamName": "a", "retentionPolicy": {"type": "LIMITED_DAYS", "timeBasedRetention": {"weeks": 1}}},
        "timeBasedRetention.weeks",
    ),
    ("POST", CREATE, {"streamName": "a", "streamTags": "x"}, "streamTags"),
    ("POST", CREATE, {"streamName": "a", "streamTags": ["x" * 257]}, "256"),
    ("POST", CREATE, {"streamName": "a", "rolloverSizeBytes": "1"}, "rolloverSizeBytes"),
    ("POST", CREATE, {"streamName": "a", "retention": {}}, "not known"),
    ("PUT", f"{CREATE}/events", {}, "scalingPolicy"),
    ("PUT", f"{CREATE}/events", {"scalingPolicy": FIXED, "streamName": "other"}, "differs from the one in the path"),
    ("PUT", f"{CREATE}/events/state", {"streamState": "OPEN"}, "SEALED"),
    ("PUT", f"{CREATE}/events/state", {}, "streamState"),
]
MISSING = [
    ("POST", "/v1/scopes/none/streams", {"streamName": "a"}),
    ("GET", "/v1/scopes/none/streams/a", None),
    ("GET", "/v1/scopes/s/streams/a", None),
    ("GET", "/v1/scopes/s%2Fstreams/events", None),
    ("GET", "/v1/scopes/../streams/events", None),
    ("PUT", "/v1/scopes/s/streams/a", {"scalingPolicy": FIXED}),
    ("PUT", "/v1/scopes/s/streams/a/state", {"streamState": "SEALED"}),
    ("DELETE", "/v1/scopes/s/streams/a", None),
    ("DELETE", "/v1/scopes/none/streams/a", None),
    ("GET", "/v1/scopes/s/readergroups/g", None),
    ("GET", "/v1/nothing", None),
    ("GET", "/", None),
]


def test_every_mistake_is_answered_with_its_own_words_and_changes_nothing() -> None:
    async def scene(run: Running) -> None:
        await with_stream(run)
        before = await run.expect(200, "GET", "/v1/scopes/s/streams")
        for method, path, body, says in BAD:
            answer = await run.call(method, path, body)
            assert answer.status == 400, (body, answer.data)
            assert says in answer.data.decode(), (body, answer.data)
        for method, path, body in MISSING:
            answer = await run.call(method, path, body)
            assert answer.status == 404, (method, path, answer.data)
            assert answer.json["class"].endswith("NotFoundError")
        assert await run.expect(200, "GET", "/v1/scopes/s/streams") == before

    play(scene)


def test_what_is_not_a_json_object_is_refused() -> None:
    async def scene(run: Running) -> None:
        for data in (
            b"",
            b"{",
            b"[]",
            b'"x"',
            b"\xff\xfe",
            b'{"scopeName": NaN}',
            b"[" * 100_000,
            b'{"a":' + b"9" * 9999,
        ):
            answer = await run.call("POST", "/v1/scopes", data=data)
            assert answer.status == 400, data[:40]
            assert answer.json["class"] == "InvalidArgumentError"

    play(scene)


def test_a_field_given_twice_is_refused() -> None:
    async def scene(run: Running) -> None:
        answer = await run.call("POST", "/v1/scopes", data=b'{"scopeName": "a", "scopeName": "b"}')
        assert answer.status == 400
        assert "twice" in answer.json["message"]

    play(scene)


def test_health_tells_what_is_down_and_why() -> None:
    async def scene(run: Running) -> None:
        assert (await run.call("GET", "/ping")).data == b""
        assert (await run.expect(200, "GET", "/v1/health"))["status"] == "UP"
        assert await run.expect(200, "GET", "/v1/health/readiness") is True
        run.failures["segmentstore"] = "the log failed"
        whole = await run.expect(200, "GET", "/v1/health")
        assert (whole["name"], whole["status"]) == ("controller", "DOWN")
        assert whole["children"]["segmentstore"]["details"] == {"segmentstore": "the log failed"}
        for path, answer in (
            ("readiness", False),
            ("liveness", False),
            ("status", "DOWN"),
            ("details", {"segmentstore": "the log failed"}),
        ):
            assert await run.expect(200, "GET", f"/v1/health/{path}") == answer
            assert await run.expect(200, "GET", f"/v1/health/{path}/segmentstore") == answer
            await run.expect(404, "GET", f"/v1/health/{path}/nothing")
        assert (await run.expect(200, "GET", "/v1/health/segmentstore"))["children"] == {}

    play(scene)


def test_a_function_that_does_not_work_makes_the_process_not_ready_but_not_dead() -> None:
    async def scene(run: Running) -> None:
        run.failures["appends"] = "tier 2 is full"
        whole = await run.expect(200, "GET", "/v1/health")
        assert (whole["status"], whole["readiness"], whole["liveness"]) == ("DOWN", False, True)
        assert whole["details"] == {"appends": "tier 2 is full"}
        assert whole["children"]["segmentstore"]["status"] == "UP"
        assert await run.expect(200, "GET", "/v1/health/readiness/appends") is False
        assert await run.expect(200, "GET", "/v1/health/readiness/segmentstore") is True
        assert await run.expect(200, "GET", "/v1/health/liveness") is True

    play(scene)


def test_a_store_that_is_gone_is_an_error_of_the_server_and_may_be_tried_again() -> None:
    async def scene(run: Running) -> None:
        await with_stream(run)
        await run.store.close()
        answer = await run.call("GET", "/v1/scopes/s/streams/events")
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"

    play(scene)


def test_a_stream_that_cannot_be_looked_up_makes_a_list_be_tried_again() -> None:
    async def scene(run: Running) -> None:
        await with_stream(run)

        async def away(_: StreamName) -> StreamConfig:
            raise UnavailableError("store is away")

        run.controller.streams.config = away
        answer = await run.call("GET", "/v1/scopes/s/streams")
        assert answer.status == 503

    play(scene)


def test_requests_at_the_same_time_do_not_hinder_one_another() -> None:
    async def scene(run: Running) -> None:
        await run.controller.scopes.create("s")
        bodies = [{"streamName": f"n{number}"} for number in range(20)]
        statuses = await asyncio.gather(*(run.call("POST", "/v1/scopes/s/streams", body) for body in bodies))
        assert {answer.status for answer in statuses} == {201}
        again = await asyncio.gather(*(run.call("POST", "/v1/scopes/s/streams", {"streamName": "x"}) for _ in range(8)))
        assert sorted(answer.status for answer in again) == [201] + [409] * 7

    play(scene)


def test_sizes_of_segments_survive_a_truncation_seen_over_http() -> None:
    async def scene(run: Running) -> None:
        await with_stream(run)
        end = await run.append(S, b"x" * 100)
        await run.controller.streams.truncate(S, StreamCut(S, {FIRST: end, make_segment_id(0, 1): 0}))
        assert (await run.store.info(segment_name(S, FIRST))).start_offset == end
        await run.expect(200, "GET", "/v1/scopes/s/streams/events")

    play(scene)


# --- the forms, without a server -----------------------------------------------------------------------------


def retention_of(**fields: object) -> RetentionPolicy:
    body = Fields({"scalingPolicy": FIXED, "retentionPolicy": fields})
    found = mapping.config_of(body, None).retention
    assert found is not None
    return found


def test_times_are_days_or_where_these_are_zero_something_finer() -> None:
    finer = {"days": 1, "hours": 2, "minutes": 3}
    finer_ms = DAY_MS + 2 * 3_600_000 + 3 * 60_000
    assert retention_of(type="LIMITED_DAYS", value=2).minimum == 2 * DAY_MS
    assert retention_of(type="LIMITED_DAYS", value=0, timeBasedRetention=finer).minimum == finer_ms
    assert retention_of(type="LIMITED_DAYS", timeBasedRetention=finer).minimum == finer_ms
    assert retention_of(type="LIMITED_DAYS", value=2, timeBasedRetention=finer).minimum == 2 * DAY_MS
    assert retention_of(type="LIMITED_DAYS", value=2).maximum is None
    assert retention_of(type="LIMITED_DAYS", value=2, maxValue=3).maximum == 3 * DAY_MS
    assert retention_of(type="LIMITED_DAYS", value=1, maxTimeBasedRetention=finer).maximum == finer_ms
    assert retention_of(type="LIMITED_SIZE_MB", value=0).minimum == 0


policies = st.one_of(
    st.none(),
    st.builds(
        RetentionPolicy,
        type=st.sampled_from(RetentionType),
        minimum=st.integers(0, LONG_MAX // 2),
        maximum=st.one_of(st.none(), st.integers(LONG_MAX // 2, LONG_MAX)),
    ),
)
scalings = st.one_of(
    st.builds(ScalingPolicy, min_segments=st.integers(1, 1000)),
    st.builds(
        ScalingPolicy,
        type=st.sampled_from([ScaleType.EVENTS_PER_S, ScaleType.KILOBYTES_PER_S]),
        target_rate=st.integers(1, 1 << 30),
        factor=st.integers(2, 100),
        min_segments=st.integers(1, 1000),
    ),
)
configs = st.builds(
    StreamConfig,
    scaling=scalings,
    retention=policies,
    tags=st.lists(st.text(min_size=1, max_size=20), max_size=5).map(tuple),
    timestamp_aggregation_ms=st.integers(0, LONG_MAX),
    rollover_bytes=st.integers(0, LONG_MAX),
)


@given(config=configs)
def test_an_answer_sent_back_changes_nothing_but_lifts_the_maximum(config: StreamConfig) -> None:
    again = mapping.config_of(Fields(mapping.stream_document(S, config)), S, config)
    before, after = config.retention, again.retention
    assert (again.scaling, again.tags, again.rollover_bytes) == (config.scaling, config.tags, config.rollover_bytes)
    assert again.timestamp_aggregation_ms == config.timestamp_aggregation_ms
    assert (after is None) == (before is None)
    if before is not None and after is not None:
        assert (after.type, after.minimum, after.maximum) == (before.type, before.minimum, None)


@given(config=configs)
def test_an_answer_never_promises_more_than_is_kept(config: StreamConfig) -> None:
    plain = mapping.config_of(Fields(mapping.stream_document(S, config)), S)
    if config.retention is not None and plain.retention is not None:
        unit = MIB if config.retention.type is RetentionType.SIZE else 60_000
        assert 0 <= config.retention.minimum - plain.retention.minimum < unit


cuts = st.lists(st.integers(1, 63), unique=True, max_size=8).map(lambda points: [0, *sorted(points), 64])


def tiles(bounds: list[int], epoch: int) -> list[SegmentRange]:
    pairs = zip(bounds, bounds[1:], strict=False)
    return [
        SegmentRange(segment=make_segment_id(epoch, number), keys=KeyRange(low=low / 64, high=high / 64))
        for number, (low, high) in enumerate(pairs)
    ]


@given(old=cuts, new=cuts)
def test_splits_and_merges_are_those_that_counting_finds(old: list[int], new: list[int]) -> None:
    before, after = tiles(old, 0), tiles(new, 1)
    epochs = [
        EpochInfo(epoch=0, created_ms=10, segments=before),
        EpochInfo(epoch=1, created_ms=20, segments=after),
    ]
    (event,) = mapping.scaling_events(epochs[1:], start_ms=0, end_ms=99)
    assert (event["splits"], event["merges"]) == (0, 0)
    _, event = mapping.scaling_events(epochs, start_ms=0, end_ms=99)
    assert event["splits"] == sum(sum(a.keys.overlaps(b.keys) for b in after) > 1 for a in before)
    assert event["merges"] == sum(sum(a.keys.overlaps(b.keys) for b in before) > 1 for a in after)
