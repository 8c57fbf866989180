from __future__ import annotations

import pytest

from penstock.core.units import parse_size
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError, InvalidNameError
from penstock.model.names import RECORD_STREAMS, StreamName
from penstock.model.segments import SegmentId
from penstock.spark.kafka import KAFKA_OPTIONS
from penstock.spark.options import READ_OPTIONS, WRITE_OPTIONS, parse_read, parse_sink, parse_write, plain_name
from penstock.spark.schema import READ_MARK, check_read_schema, check_write_schema, read_columns, target_columns
from penstock.spark.source import PenstockSource

STREAM = {"scope": "plant", "stream": "turbine"}


def test_the_stream_is_named_in_each_of_the_ways_people_name_it() -> None:
    for given in (STREAM, {"path": "plant/turbine"}, {"stream": "plant/turbine"}, {**STREAM, "path": "plant/turbine"}):
        assert parse_read(given).stream == StreamName("plant", "turbine")


def test_contradicting_names_of_the_stream_are_refused() -> None:
    for given in ({**STREAM, "path": "plant/other"}, {"scope": "other", "stream": "plant/turbine"}, {}):
        with pytest.raises(InvalidArgumentError):
            parse_read(given)
    with pytest.raises(InvalidNameError, match="option stream"):
        parse_read({"path": "plant"})
    with pytest.raises(InvalidArgumentError, match="one path"):
        parse_read({**STREAM, "paths": '["a/b","c/d"]'})


@pytest.mark.parametrize("stream", RECORD_STREAMS)
def test_the_records_of_the_store_are_read_and_nothing_else_of_it_and_never_written(stream: StreamName) -> None:
    assert parse_read({"path": str(stream)}).stream == stream
    assert parse_read({"scope": "_system", "stream": stream.stream}).stream == stream
    for refused in ("_system/_tables", "_system/other", "plant/_RGgroup"):
        with pytest.raises(InvalidNameError):
            parse_read({"path": refused})
    with pytest.raises(InvalidNameError):
        parse_write({"path": str(stream)})


@pytest.mark.parametrize("name", ["maxBytesPerTrigger", "max_bytes_per_trigger", "maxbytespertrigger"])
def test_spelling_of_an_option_is_free(name: str) -> None:
    assert parse_read({**STREAM, name: "64m"}).bytes_per_trigger == 64 << 20


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        *(("1000", 1000), ("64m", 64 << 20), ("2K", 2048), ("1g", 1 << 30), ("7b", 7)),
        *(("64MiB", 64 << 20), ("10MB", 10_000_000), ("1.5GB", 1_500_000_000), ("0.5 kib", 512), ("3tb", 3 * 10**12)),
    ],
)
def test_sizes_are_taken_as_spark_and_as_the_command_line_write_them(text: str, size_bytes: int) -> None:
    given = parse_read({**STREAM, "max_bytes_per_trigger": text, "target_partition_bytes": text})
    assert (given.bytes_per_trigger, given.target_partition_bytes) == (size_bytes, size_bytes)
    if not text.endswith(("m", "K", "g")):
        assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["0.1", "64x", "m", "1.m", "-1m", "1e3", "0MiB"])
def test_what_is_no_size_is_refused_and_shown(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="64MiB"):
        parse_read({**STREAM, "max_bytes_per_trigger": text})


def test_a_count_is_no_size() -> None:
    with pytest.raises(InvalidArgumentError, match="whole number"):
        parse_read({**STREAM, "max_events_per_trigger": "1m"})


def test_an_unknown_option_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_read({**STREAM, "contoller": "here:1"})
    assert str(caught.value) == "there is no such option; did you mean controller? option=contoller"
    with pytest.raises(InvalidArgumentError, match=r"did you mean max_bytes_per_trigger\? .*maxbytepertrigger"):
        parse_read({**STREAM, "maxbytepertrigger": "1"})
    with pytest.raises(InvalidArgumentError, match="did you mean subscriber"):
        parse_read({**STREAM, "subscribers": "a"})
    with pytest.raises(InvalidArgumentError, match="did you mean writer_id"):
        parse_write({**STREAM, "writer": "a"})
    with pytest.raises(InvalidArgumentError, match="option writer_id is only for writing"):
        parse_read({**STREAM, "writerId": "a"})
    with pytest.raises(InvalidArgumentError, match="option subscriber is only for reading"):
        parse_write({**STREAM, "subscriber": "a"})


@pytest.mark.parametrize("name", sorted({*READ_OPTIONS, *WRITE_OPTIONS} - {"path", "scope", "stream"}))
def test_any_slip_of_the_hand_is_told_with_the_option_that_was_meant(name: str) -> None:
    parse = parse_read if name in READ_OPTIONS else parse_write
    plain = name.lower().replace("_", "")
    slips = {plain[:-1], plain[1:], f"{plain}s", plain[0] + plain[2] + plain[1] + plain[3:], plain[:3] + plain[4:]}
    for slip in sorted(slips - {plain} - KAFKA_OPTIONS.keys()):
        with pytest.raises(InvalidArgumentError, match=rf"did you mean {name}\?"):
            parse({**STREAM, slip: "1"})


@pytest.mark.parametrize(
    ("kafka", "ours"),
    [
        ("subscribe", "stream"),
        ("assign", "stream"),
        ("kafka.bootstrap.servers", "controller"),
        ("startingOffsets", "start_stream_cut"),
        ("startingTimestamp", "start_timestamp"),
        ("endingOffsets", "end_stream_cut"),
        ("maxOffsetsPerTrigger", "max_events_per_trigger"),
        ("kafka.group.id", "subscriber"),
    ],
)
def test_an_option_of_kafka_is_refused_with_the_option_that_does_the_same_here(kafka: str, ours: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"Kafka.* use {ours}\b") as caught:
        parse_read({**STREAM, kafka: "1"})
    assert caught.value.fields == {"option": kafka}


@pytest.mark.parametrize(
    ("kafka", "words"),
    [
        ("topic", r"use stream\b"),
        ("kafka.bootstrap.servers", r"use controller\b"),
        ("kafka.acks", "none like it"),
        ("includeHeaders", r"use event_format\b"),
        ("subscribe", r"use stream\b"),
        ("startingOffsets", "a sink has none like it"),
        ("maxOffsetsPerTrigger", "a sink has none like it"),
        ("kafka.group.id", "a sink has none like it"),
        ("failOnDataLoss", "fail_on_data_loss is only for reading"),
        ("minPartitions", "min_partitions is only for reading"),
    ],
)
def test_a_sink_suggests_for_an_option_of_kafka_only_what_a_sink_has(kafka: str, words: str) -> None:
    for given in (STREAM, {}):
        with pytest.raises(InvalidArgumentError, match=words) as caught:
            parse_sink({**given, kafka: "1"})
        assert caught.value.fields == {"option": kafka}


def test_columns_of_rows_for_kafka_are_refused_with_their_names_here() -> None:
    def check(*names: str, event: str = "event") -> None:
        check_write_schema([(name, "string") for name in names], event=event, routing_key="routing_key")

    with pytest.raises(
        InvalidArgumentError, match=r"select value as event \(or event_column=value\), key as routing_key"
    ):
        check("key", "value", "topic")
    with pytest.raises(InvalidArgumentError, match=r"select key as routing_key .*, topic as stream"):
        check("key", "value", "topic", event="value")
    with pytest.raises(InvalidArgumentError) as caught:
        check("event", "price")
    assert "Kafka" not in str(caught.value)


def test_options_that_kafka_and_penstock_both_have_are_taken() -> None:
    given = parse_read({**STREAM, "failOnDataLoss": "false", "minPartitions": "7"})
    assert (given.fail_on_data_loss, given.min_partitions) == (False, 7)


def test_what_kafka_alone_has_is_refused_without_a_wrong_hint() -> None:
    for name in ("kafka.security.protocol", "includeHeaders", "minOffsetsPerTrigger"):
        with pytest.raises(InvalidArgumentError, match="Kafka") as caught:
            parse_read({**STREAM, name: "1"})
        assert "did you mean" not in str(caught.value)
    with pytest.raises(InvalidArgumentError, match=r"Kafka.* use stream\b"):
        parse_write({**STREAM, "topic": "turbine"})


def test_every_suggestion_for_an_option_of_kafka_is_an_option() -> None:
    for name, ours in KAFKA_OPTIONS.items():
        assert name == plain_name(name)
        assert not ours or ours.split()[0] in {*READ_OPTIONS, *WRITE_OPTIONS}


def test_what_spark_itself_adds_is_no_unknown_option() -> None:
    parse_read({"path": "plant/turbine", "queryname": "q"})
    parse_write({**STREAM, "checkpointlocation": "/c", "queryname": "q"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_bytes_per_trigger", "0"),
        ("max_bytes_per_trigger", "-1"),
        ("min_partitions", "many"),
        ("direct", "yes"),
        ("start_stream_cut", "middle"),
        ("subscriber", "not/one name"),
        *((name, "9" * 25) for name in ("max_bytes_per_trigger", "max_events_per_trigger", "lease_seconds")),
        *((name, "9" * 5000) for name in ("target_partition_bytes", "min_partitions", "batch_rows")),
        ("batch_rows", "1000000000000"),
        ("min_partitions", "1e3"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_read({**STREAM, name: value})


def test_a_word_for_a_cut_that_is_misspelt_is_told_with_the_right_one() -> None:
    with pytest.raises(
        InvalidCutError, match=r"option start_stream_cut must be earliest, latest.*did you mean earliest"
    ):
        parse_read({**STREAM, "start_stream_cut": "erliest"})


def test_a_cut_of_another_stream_is_refused() -> None:
    mine = StreamCut(StreamName("plant", "turbine"), {SegmentId(0): 8})
    other = StreamCut(StreamName("plant", "dam"), {SegmentId(0): 8})
    assert parse_read({**STREAM, "start_stream_cut": mine.to_text()}).start == mine
    assert [parse_read({**STREAM, "start_stream_cut": word}).start for word in ("head", "Tail")] == [
        "earliest",
        "latest",
    ]
    with pytest.raises(InvalidArgumentError, match="another stream"):
        parse_read({**STREAM, "start_stream_cut": other.to_text()})


def test_a_batch_job_names_itself_completely_or_not_at_all() -> None:
    assert parse_write({**STREAM, "txnappid": "load", "txnversion": "7"}).job == ("load", 7)
    for given in (
        {"txnappid": "load"},
        {"txnversion": "7"},
        {"txnappid": "load", "txnversion": "-7"},
        {"txnappid": "load", "txnversion": str(1 << 63)},
    ):
        with pytest.raises(InvalidArgumentError):
            parse_write({**STREAM, **given})


def test_the_lease_of_a_transaction_stays_within_what_the_controller_takes() -> None:
    with pytest.raises(InvalidArgumentError, match="transaction_timeout_ms"):
        parse_write({**STREAM, "transaction_timeout_ms": "1000"})


def test_the_default_columns_are_those_of_pravegas_connector() -> None:
    read = PenstockSource({**STREAM}).schema()
    assert read.simpleString() == "struct<event:binary,scope:string,stream:string,segment_id:bigint,offset:bigint>"
    chosen = PenstockSource({**STREAM, "columns": "append_time, offset, event"}).schema()
    assert chosen.simpleString() == "struct<append_time:timestamp,offset:bigint,event:binary>"
    assert all(field.nullable for field in [*read.fields, *chosen.fields])
    with pytest.raises(InvalidArgumentError, match="did you mean offset"):
        read_columns(("offsets",))
    with pytest.raises(InvalidArgumentError, match="twice"):
        read_columns(("offset", "offset"))


def test_a_column_of_another_type_is_refused() -> None:
    check_read_schema([("offset", "bigint"), ("event", "binary")])
    with pytest.raises(InvalidArgumentError, match="cast"):
        check_read_schema([("event", "string")])
    with pytest.raises(InvalidArgumentError, match="at least one"):
        check_read_schema([])


def test_columns_that_name_a_stream_are_checked_unless_a_read_made_them() -> None:
    read = {READ_MARK: True}
    given = [("event", "binary", {}), ("scope", "string", read), ("stream", "string", {}), ("offset", "bigint", {})]
    assert target_columns(given, "event", "routing_key") == ("stream",)
    assert target_columns(given, "event", "stream") == ()
    with pytest.raises(InvalidArgumentError, match="strings"):
        target_columns([("scope", "int", {})], "event", "routing_key")


def test_options_that_do_nothing_for_a_writer_are_refused() -> None:
    job = {**STREAM, "txnAppId": "app", "txnVersion": "1"}
    assert parse_write({**job, "reset_writer": "false"}).job == ("app", 1)
    for given, words in (
        ({**job, "reset_writer": "true"}, "use another txnAppId"),
        ({**job, "replaces_query": "any"}, "subscribers only"),
        ({**STREAM, "replaces_query": "any"}, "subscribers only"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            parse_write(given)
    assert parse_read({**STREAM, "replaces_query": "any"}).replaces_query == "any"


def test_no_column_is_lost_in_silence_when_writing() -> None:
    def keyed(*columns: tuple[str, str]) -> bool:
        return check_write_schema(columns, event="event", routing_key="routing_key")

    assert not keyed(("event", "binary"))
    assert keyed(("event", "string"), ("routing_key", "string"))
    assert not keyed(("event", "binary"), ("scope", "string"), ("offset", "bigint"))
    for columns in (
        [("event", "int")],
        [("routing_key", "string")],
        [("event", "binary"), ("price", "int")],
        [("event", "binary"), ("routing_key", "int")],
        [("event", "binary"), ("event", "string")],
    ):
        with pytest.raises(InvalidArgumentError):
            keyed(*columns)
