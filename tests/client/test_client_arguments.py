"""Laws of wrong arguments: none is taken for another one, and the error names it and what is accepted."""

from __future__ import annotations

import pytest
from client_world import open_services

from penstock.client.blocking.stores import Store
from penstock.model.cuts import StreamCut
from penstock.model.errors import GenerationMismatchError, InvalidArgumentError, InvalidCutError, InvalidNameError
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType, ScalingPolicy, StreamConfig
from penstock.net.grpc.mapping import config_message
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng


@pytest.fixture
def store():
    with Store(lambda: open_services(RealClock(), RealRng())) as opened:
        yield opened


@pytest.fixture
def stream(store):
    made = store.create_stream("a/s", create_scope=True)
    with made.writer() as writer:
        writer.write_many([b"1", b"2", b"3"])
    return made


def events(stream, **bounds):
    with stream.reader(until_tail="end" not in bounds, **bounds) as reader:
        return [event.data for event in reader]


def middle(stream):
    with stream.reader() as reader:
        assert reader.read(30).data == b"1"
        assert reader.read(30).data == b"2"
        return reader.position()


@pytest.mark.parametrize("start", ["bogus", "", "Head", 0, 7, b"head", [], {"a/s": None}, True])
def test_a_reader_starts_nowhere_else_than_asked(stream, start):
    with pytest.raises(InvalidArgumentError, match='start must be "earliest", "latest", a StreamCut or its text'):
        stream.reader(start=start)


@pytest.mark.parametrize("end", ["bogus", "head", 0, b"tail", []])
def test_a_reader_ends_nowhere_else_than_asked(stream, end):
    with pytest.raises(InvalidArgumentError, match='end must be None, "latest", a StreamCut or its text'):
        stream.reader(end=end)


def test_the_text_of_a_cut_is_a_cut(stream, store):
    cut = middle(stream)
    text = cut.to_text()
    assert events(stream, start=text) == events(stream, start=cut)
    assert len(events(stream, start=text)) == 2
    assert events(stream, end=text) == events(stream, end=cut) == [b"1"]
    assert events(stream, end=StreamCut(stream.name, {})) == [b"1", b"2", b"3"], "an unbounded end is the tail"
    assert events(stream, start="tail") == []
    stream.truncate(text)
    assert stream.head() == cut
    other = store.create_stream("a/other")
    with pytest.raises(InvalidCutError, match="another stream"):
        events(other, start=text)
    with pytest.raises(InvalidCutError):
        other.truncate(text)
    for wrong in ("abc", "tail", None, 7):
        with pytest.raises(InvalidArgumentError, match="cut must be a StreamCut or the text of one"):
            stream.truncate(wrong)


def test_a_group_starts_where_asked_or_not_at_all(stream, store):
    cut = middle(stream)
    for number, start in enumerate([cut, cut.to_text(), {"a/s": cut}, {"a/s": cut.to_text()}]):
        assert store.reader_group(f"g{number}", ["a/s"], start=start).positions() == {stream.name: cut}
    assert store.reader_group("tail", ["a/s"], start={"a/s": "tail"}).positions() == {stream.name: stream.tail()}
    for wrong in ("bogus", 7, {"a/s": "bogus"}, {"a/s": 7}, [cut]):
        with pytest.raises(InvalidArgumentError, match="start must be"):
            store.reader_group("wrong", ["a/s"], start=wrong)
    with pytest.raises(InvalidCutError):
        store.reader_group("wrong", ["a/s"], start=StreamCut(stream.name, {77: 0}))
    with pytest.raises(InvalidArgumentError, match="list"):
        store.reader_group("wrong", "a/s")
    assert "a/wrong" not in store.reader_groups("a"), "a refused group is not left behind"


def test_what_to_do_with_truncated_data_is_one_of_two_words(stream, store):
    with pytest.raises(InvalidArgumentError, match="on_truncated must be raise or skip"):
        stream.reader(on_truncated="ignore")
    with pytest.raises(InvalidArgumentError, match="on_truncated must be raise or skip"):
        store.reader_group("g", ["a/s"]).reader("one", on_truncated="ignore")


@pytest.mark.parametrize("key", [7, b"k", 1.5, [], {}, ("k",)])
def test_a_key_that_is_no_text_is_refused_and_the_writer_goes_on(stream, key):
    with stream.writer() as writer:
        with pytest.raises(InvalidArgumentError, match="a routing key must be text or None") as caught:
            writer.write("x", key)
        assert caught.value.fields["key"] == repr(key)
        with pytest.raises(InvalidArgumentError, match="routing key"):
            writer.write_many(["x", "y"], ["k", key])
        with pytest.raises(InvalidArgumentError, match="routing key"):
            writer.write(bytes(9 << 20), key)
        writer.write("4", "k")
    with pytest.raises(InvalidArgumentError, match="routing key"):
        stream.writer().write("x", key)
    with stream.transaction() as txn:
        with pytest.raises(InvalidArgumentError, match="routing key"):
            txn.write("x", key)
        txn.write("5", "k")
    assert events(stream) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("given", ["abc", b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_one_event_is_not_many(stream, given):
    with stream.writer() as writer, stream.transaction() as txn:
        for one in (writer, txn):
            with pytest.raises(InvalidArgumentError, match="events must be a list"):
                one.write_many(given)
            with pytest.raises(InvalidArgumentError, match="keys must be a list"):
                one.write_many([b"1", b"2", b"3"], given)
    assert events(stream) == [b"1", b"2", b"3"]


def test_unknown_options_are_named_as_typed(stream):
    for make, what in ((stream.writer, "a writer"), (stream.transaction, "a transaction")):
        with pytest.raises(InvalidArgumentError, match=f"{what} has no such option. option=block_byte ") as caught:
            make(block_byte=1 << 20)
        assert "block_bytes" in caught.value.fields["known"]
        with pytest.raises(InvalidArgumentError, match="option=block_bytes value='1MB'"):
            make(block_bytes="1MB")
    with pytest.raises(InvalidArgumentError, match="lease_s must be a number"):
        stream.transaction(lease_s="30")


def test_policies_take_words_for_their_type_and_whole_numbers_alone():
    assert RetentionPolicy(type="size", maximum=9) == RetentionPolicy(type=RetentionType.SIZE, maximum=9)
    assert RetentionPolicy(type="time").unit == "ms"
    with pytest.raises(InvalidArgumentError, match="type must be one of size, time"):
        RetentionPolicy(type="weight")
    for limits in ({"minimum": "10MB"}, {"maximum": "10MB"}, {"minimum": 1.5}, {"maximum": True}, {"minimum": None}):
        (field,) = limits
        with pytest.raises(
            InvalidArgumentError, match=f"retention by size .in bytes. must be a whole number. field={field}"
        ):
            RetentionPolicy(type="size", **limits)
    assert ScalingPolicy(type="events", target_rate=1, factor=2).type.value == "events"
    with pytest.raises(InvalidArgumentError, match="min_segments"):
        ScalingPolicy(min_segments="4")
    with pytest.raises(InvalidArgumentError, match="retention must be a RetentionPolicy"):
        StreamConfig(retention="size")


def test_tags_are_a_list(store):
    with pytest.raises(InvalidArgumentError, match="tags"):
        store.create_stream("b/s", tags="red", create_scope=True)
    assert "b" not in store.scopes()


def test_a_group_on_a_stream_that_was_made_anew_says_so(stream, store):
    store.reader_group("g", ["a/s"])
    stream.seal()
    stream.delete()
    store.create_stream("a/s")
    for again in (lambda: store.reader_group("g", ["a/s"]), lambda: store.open_reader_group("a/g")):
        with pytest.raises(GenerationMismatchError, match="make it again") as caught:
            again()
        assert caught.value.fields == {"group": "a/g", "stream": "a/s"}
    store.call(lambda inner: inner.controller.groups.delete("a", "g"))
    assert store.reader_group("g", ["a/s"]).positions() == {stream.name: stream.head()}


def test_things_say_what_they_are(stream, store):
    cut = StreamCut(StreamName("a", "s"), {3: 4, 1: 2})
    assert eval(repr(cut)) == cut  # noqa: S307 - our own text
    assert repr(cut) == str(cut) == "StreamCut(StreamName('a', 's'), {1: 2, 3: 4})"
    assert repr(stream) == "<Stream a/s>"
    assert repr(store.reader_group("g", ["a/s"])) == "<ReaderGroup a/g of a/s, retention none>"
    assert repr(store) == "<Store store, open>"
    store.close()
    assert repr(store) == "<Store store, closed>"


def test_an_error_has_one_stop_behind_its_message():
    assert str(InvalidArgumentError("is it there?", at="x")) == "is it there? at=x"
    assert str(InvalidArgumentError("it is.", at="x")) == "it is. at=x"
    assert str(InvalidArgumentError("it is", at="x")) == "it is. at=x"


CUTS_THAT_NOBODY_REACHED = {
    "beyond the tail": {0: 1 << 40},
    "of a segment that never was": {77: 0},
}

TAKES_A_CUT = {
    "reader start": lambda store, stream, cut: events(stream, start=cut),
    "reader end": lambda store, stream, cut: events(stream, end=cut),
    "truncate": lambda store, stream, cut: stream.truncate(cut),
    "set_acknowledged": lambda store, stream, cut: stream.set_acknowledged("a/known", cut),
    "group start": lambda store, stream, cut: store.reader_group("fresh", ["a/s"], start=cut),
    "publish": lambda store, stream, cut: store.open_reader_group("a/known").publish(cut),
    "hold": lambda store, stream, cut: store.holds("a/s").add(owner="o", reason="r", cut=cut),
    "explain": lambda store, stream, cut: stream.retention.explain(position=cut),
}


@pytest.mark.parametrize("what", CUTS_THAT_NOBODY_REACHED)
@pytest.mark.parametrize("call", TAKES_A_CUT)
def test_a_cut_that_no_reader_can_have_reached_is_refused_by_every_call(store, stream, call, what):
    store.reader_group("known", ["a/s"], retention="manual")
    cut = StreamCut(stream.name, CUTS_THAT_NOBODY_REACHED[what])
    with pytest.raises(InvalidCutError):
        TAKES_A_CUT[call](store, stream, cut)
    assert store.reader_groups("a") == ["a/known"]
    assert stream.head().positions == {0: 0}
    assert [item.lag_events for item in stream.subscribers()] == [3]
    assert list(store.holds("a/s").list()) == []


@pytest.mark.parametrize("name", [7, None, b"a/s", ("a", "s"), ["a/s"], 1.5, []])
@pytest.mark.parametrize(
    "call",
    [
        lambda store, name: store.stream(name),
        lambda store, name: store.create_stream(name, create_scope=True),
        lambda store, name: store.create_scope(name),
        lambda store, name: store.reader_group(name, ["a/s"]),
        lambda store, name: store.reader_group("a/g", [name]),
        lambda store, name: store.open_reader_group(name),
        lambda store, name: store.delete_scope(name),
        lambda store, name: store.streams(name),
        lambda store, name: store.describe_reader_group(name),
    ],
)
def test_a_name_that_is_no_text_is_refused_with_its_type(stream, store, call, name):
    with pytest.raises(InvalidNameError, match=f"name must be text. type={type(name).__name__}"):
        call(store, name)
    assert (store.scopes(), store.streams("a"), store.reader_groups("a")) == (["a"], ["s"], [])


@pytest.mark.parametrize("segments", [0, -1, 10_001, 10**9, 2**70, 1.5, float("nan"), "2", True, [2]])
def test_a_number_of_segments_outside_the_limits_is_refused_before_any_range_is_made(stream, segments, monkeypatch):
    monkeypatch.setattr("penstock.client.stream.even_ranges", lambda count: pytest.fail(f"made {count} ranges"))
    with pytest.raises(InvalidArgumentError, match="segments"):
        stream.scale(segments)
    assert stream.describe().epoch == 0


@pytest.mark.parametrize("ranges", [[1], ["0-1"], [None], [(0.0, 1.0)]])
def test_ranges_of_another_type_are_refused(stream, ranges):
    with pytest.raises(InvalidArgumentError, match="new_ranges must be KeyRange objects"):
        stream.scale(sealed=[0], new_ranges=ranges)
    assert stream.describe().epoch == 0


@pytest.mark.parametrize("number", [{"target_rate": 2**31, "factor": 2}, {"target_rate": 1, "factor": 2**31}])
def test_a_rate_that_pravega_clients_could_not_read_is_refused(store, stream, number):
    policy = ScalingPolicy(type="events", **number)
    with pytest.raises(InvalidArgumentError, match="does not fit in 32 bits"):
        store.create_stream("a/rate", scaling=policy)
    with pytest.raises(InvalidArgumentError, match="does not fit in 32 bits"):
        stream.update(scaling=policy)
    assert not store.stream("a/rate").exists()
    assert stream.config().scaling.target_rate == 0


def test_the_largest_rate_and_factor_reach_pravega_clients(stream):
    stream.update(scaling=ScalingPolicy(type="events", target_rate=2**31 - 1, factor=2**31 - 1))
    message = config_message(stream.name, stream.config())
    assert (message.scalingPolicy.targetRate, message.scalingPolicy.scaleFactor) == (2**31 - 1, 2**31 - 1)
