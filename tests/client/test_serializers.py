"""Serializers: what is encoded comes back, other bytes are DecodeError and nothing else, schemas are asked for once."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protobuf_messages import Customer, Line, Money, Order
from registry_world import reads

import penstock
from penstock.model.errors import (
    DecodeError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    SchemaNotFoundError,
    SchemaRegistryUnavailableError,
)
from penstock.ports.schemas import Schema, SchemaKind

PRAVEGA = penstock.IdStyle.PRAVEGA
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "number", "type": "long"}, {"name": "lines", "type": {"type": "array", "items": "string"}}],
}
NEWER = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "note", "type": "string", "default": "none"}]}
REFUSED = {**SCHEMA, "fields": [{"name": "number", "type": "string"}]}


class Struct(msgspec.Struct):
    number: int
    lines: list[str]


@dataclass
class Plain:
    number: int
    lines: list[str]


class Dictionary(TypedDict):
    number: int
    lines: list[str]


class Counting:
    """A registry that counts its calls, and may be down."""

    def __init__(self, registry):
        self._registry = registry
        self.calls = 0
        self.down = False

    def __getattr__(self, name):
        def call(*arguments):
            self.calls += 1
            if self.down:
                raise SchemaRegistryUnavailableError("schema registry does not answer")
            return getattr(self._registry, name)(*arguments)

        return call


@pytest.fixture
def registry():
    return Counting(penstock.MemorySchemaRegistry(reads))


VALUE = {"number": 7, "lines": ["a", "é"]}
CASES = {
    "bytes": (lambda **_: penstock.BytesSerializer(), b"\xff"),
    "text": (lambda **_: penstock.TextSerializer(), "é"),
    "json": (lambda **given: penstock.JsonSerializer(dict, **given), VALUE),
    "json struct": (lambda **given: penstock.JsonSerializer(Struct, **given), Struct(**VALUE)),
    "json dataclass": (lambda **given: penstock.JsonSerializer(Plain, **given), Plain(**VALUE)),
    "json typed dict": (lambda **given: penstock.JsonSerializer(Dictionary, **given), VALUE),
    "avro": (lambda **given: penstock.AvroSerializer(SCHEMA, **given), VALUE),
    "avro text": (lambda **given: penstock.AvroSerializer(json.dumps(SCHEMA), **given), VALUE),
    "avro struct": (lambda **given: penstock.AvroSerializer(SCHEMA, Struct, **given), Struct(**VALUE)),
    "avro dataclass": (lambda **given: penstock.AvroSerializer(SCHEMA, Plain, **given), Plain(**VALUE)),
    "protobuf": (lambda **given: penstock.ProtobufSerializer(Order, **given), Order(number=7, total=Money(cents=3))),
    "protobuf first": (lambda **given: penstock.ProtobufSerializer(Customer, **given), Customer(name="é")),
    "protobuf nested": (lambda **given: penstock.ProtobufSerializer(Line, **given), Line(count=2)),
}
REGISTERED = [name for name in CASES if name not in ("bytes", "text")]


@pytest.mark.parametrize("name", CASES)
def test_a_value_comes_back(name):
    make, value = CASES[name]
    serializer = make()
    assert not serializer.needs_lookup(None)
    assert serializer.decode(serializer.encode(value)) == value


@pytest.mark.parametrize("style", penstock.IdStyle)
@pytest.mark.parametrize("name", REGISTERED)
def test_a_schema_is_asked_for_once_and_known_ones_need_no_registry(registry, name, style):
    make, value = CASES[name]
    writer, reader = (make(registry=registry, subject="s", style=style) for _ in range(2))
    assert writer.needs_lookup(None)
    registry.down = True
    with pytest.raises(SchemaRegistryUnavailableError):
        writer.encode(value)
    registry.down = False
    data = writer.encode(value)
    assert data[:5].hex() == ("01" if style is PRAVEGA else "00") + f"{registry.latest('s').id:08x}"
    assert reader.decode(data) == value
    registry.down, before = True, registry.calls
    assert not writer.needs_lookup(None)
    assert not reader.needs_lookup(data)
    assert (writer.encode(value), reader.decode(data)) == (data, value)
    assert registry.calls == before


@pytest.mark.parametrize("name", REGISTERED)
def test_a_schema_that_is_not_registered_is_refused_if_it_must_be(registry, name):
    make, value = CASES[name]
    with pytest.raises(SchemaNotFoundError):
        make(registry=registry, subject="s", register=False).encode(value)
    data = make(registry=registry, subject="s").encode(value)
    assert make(registry=registry, subject="s", register=False).encode(value) == data


@pytest.mark.parametrize("name", [name for name in CASES if name != "bytes"])
@given(data=st.binary(max_size=50) | st.builds(lambda rest: b"\0\0\0\0\1" + rest, st.binary(max_size=30)))
def test_other_bytes_are_a_decode_error_and_nothing_else(name, data):
    make, value = CASES[name]
    for serializer in (make(), make(registry=penstock.MemorySchemaRegistry(), subject="s")):
        serializer.encode(value)
        with suppress(DecodeError):
            assert serializer.decode(data) is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes", 7),
        ("text", b"x"),
        ("text", "\ud800"),
        ("json", {1j: 2}),
        ("json struct", Struct(number="x", lines=[])),
        ("json dataclass", {"number": 1}),
        ("avro", {"number": "x", "lines": []}),
        ("avro", {"number": 1}),
        ("avro", {"number": 1, "lines": [], "more": 1}),
        ("avro", {"number": 1 << 70, "lines": []}),
        ("avro", None),
        ("avro struct", Struct(number="x", lines=[])),
        ("protobuf", Customer()),
        ("protobuf", {"number": 1}),
    ],
)
def test_a_value_that_does_not_fit_is_refused(registry, name, value):
    make, _ = CASES[name]
    for serializer in (make(), make(registry=registry, subject="s")):
        with pytest.raises(InvalidArgumentError):
            serializer.encode(value)


def test_avro_resolves_the_schema_of_an_older_or_newer_writer(registry):
    old, new = (penstock.AvroSerializer(schema, registry=registry, subject="s") for schema in (SCHEMA, NEWER))
    first, second = old.encode(VALUE), new.encode({**VALUE, "note": "x"})
    assert new.decode(first) == {**VALUE, "note": "none"}
    assert old.decode(second) == VALUE
    assert old.needs_lookup(second) is False


def test_a_schema_that_does_not_fit_is_refused_before_anything_is_encoded(registry):
    penstock.AvroSerializer(SCHEMA, registry=registry, subject="s").encode(VALUE)
    refused = penstock.AvroSerializer(REFUSED, registry=registry, subject="s")
    for _ in range(2):
        with pytest.raises(IncompatibleSchemaError):
            refused.encode({"number": "7"})


def test_an_event_of_an_unknown_or_another_kind_of_schema_is_a_decode_error(registry):
    serializer = penstock.AvroSerializer(SCHEMA, registry=registry, subject="s")
    with pytest.raises(DecodeError):
        serializer.decode(b"\0\0\0\0\x63")
    number = registry.register("other", Schema(kind=SchemaKind.JSON, text="{}"))
    with pytest.raises(DecodeError):
        serializer.decode(b"\0" + number.to_bytes(4, "big") + b"\2\0")


def test_a_protobuf_event_of_another_message_is_never_decoded(registry):
    order, line = (penstock.ProtobufSerializer(kind, registry=registry, subject="s") for kind in (Order, Line))
    data = line.encode(Line(count=2))
    assert data[5:8].hex() == "040200"
    with pytest.raises(DecodeError):
        order.decode(data)


@pytest.mark.parametrize(
    ("make", "value", "data"),
    [
        (lambda **given: penstock.AvroSerializer(SCHEMA, **given), VALUE, "0000000063 0e04026104c3a900"),
        (
            lambda **given: penstock.ProtobufSerializer(Order, **given),
            Order(number=7, total=Money(cents=3)),
            "0000000063 0202 080712020803",
        ),
        (lambda **given: penstock.ProtobufSerializer(Customer, **given), Customer(name="a"), "0000000063 00 0a0161"),
        (lambda **given: penstock.ProtobufSerializer(Line, **given), Line(count=2), "0000000063 040200 0802"),
    ],
)
def test_events_have_the_bytes_of_the_serializers_of_confluent(make, value, data):
    """Pinned by what confluent-kafka 2.16.1 writes for these values."""

    class Fixed(penstock.MemorySchemaRegistry):
        def register(self, subject, schema):
            self._schemas[99] = schema
            return 99

        def find(self, subject, schema):
            return penstock.RegisteredSchema(id=99, subject=subject, version=1, schema=schema)

    serializer = make(registry=Fixed(), subject="s")
    assert serializer.encode(value) == bytes.fromhex(data.replace(" ", ""))
    assert serializer.decode(bytes.fromhex(data.replace(" ", ""))) == value


def test_protobuf_imports_are_registered_before_what_imports_them(registry):
    penstock.ProtobufSerializer(Order, registry=registry, subject="orders").encode(Order())
    (reference,) = registry.latest("orders").schema.references
    assert (reference.name, reference.subject, reference.version) == ("shop/money.proto", "shop/money.proto", 1)


def test_avro_keeps_times_and_decimals():
    schema = {
        "type": "record",
        "name": "Paid",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        ],
    }

    class Paid(msgspec.Struct):
        at: datetime
        sum: Decimal

    value = Paid(at=datetime(2026, 5, 1, tzinfo=UTC), sum=Decimal("12.34"))
    serializer = penstock.AvroSerializer(schema, Paid)
    assert serializer.decode(serializer.encode(value)) == value


@pytest.mark.parametrize(
    "make",
    [
        lambda: penstock.AvroSerializer("{"),
        lambda: penstock.AvroSerializer({"type": "recorrd"}),
        lambda: penstock.JsonSerializer(complex),
        lambda: penstock.ProtobufSerializer(dict),
        lambda: penstock.JsonSerializer(dict, registry=penstock.MemorySchemaRegistry()),
    ],
)
def test_a_serializer_that_cannot_work_is_refused_when_it_is_made(make):
    with pytest.raises(InvalidArgumentError):
        make()


CHAIN = {
    "type": "record",
    "name": "Link",
    "namespace": "chain",
    "fields": [
        {"name": "next", "type": ["null", "Link"]},
        {"name": "more", "type": {"type": "array", "items": "Link"}},
    ],
}
_DEEP = '{"type":"array","items":' * 3000 + '"int"' + "}" * 3000


def links(levels):
    value = {"next": None, "more": []}
    for _ in range(levels):
        value = {"next": value, "more": []}
    return value


def test_avro_refuses_deep_events_and_values_instead_of_ending_the_process():
    """The compiled fastavro has no limit, and overruns the stack. In a process of its own: a crash is no failed test."""
    code = """
import penstock
from penstock.model.errors import DecodeError, InvalidArgumentError
from test_serializers import CHAIN, links
made = penstock.AvroSerializer(CHAIN)
assert made.decode(made.encode(links(90))) == links(90)
cycle = links(0)
cycle["next"] = cycle
cycle["more"] = [cycle, cycle]
for value in (links(20_000), cycle):
    try:
        made.encode(value)
    except InvalidArgumentError as error:
        assert "deep" in str(error), error
    else:
        raise AssertionError("encoded")
try:
    made.decode(b"\\2" * 200_000 + b"\\0")
except DecodeError:
    print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_a_schema_of_avro_that_is_nested_too_deep_is_a_typed_error():
    with pytest.raises(InvalidArgumentError):
        penstock.AvroSerializer(_DEEP)
    registry = penstock.MemorySchemaRegistry()
    number = registry.register("deep", Schema(kind=SchemaKind.AVRO, text=_DEEP))
    serializer = penstock.AvroSerializer('"int"', registry=registry, subject="s")
    with pytest.raises(DecodeError):
        serializer.decode(b"\0" + number.to_bytes(4, "big") + b"\2")


_NOTHING = {"type": "record", "name": "Nothing", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.parametrize(
    "items",
    [
        "null",
        _NOTHING,
        {"type": "fixed", "name": "Zero", "size": 0},
        {
            "type": "record",
            "name": "Outer",
            "fields": [{"name": "a", "type": _NOTHING}, {"name": "b", "type": "Nothing"}],
        },
    ],
)
def test_an_array_of_avro_whose_items_take_no_bytes_is_refused(items):
    """Otherwise an event of six bytes holds two billion items."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "all", "type": {"type": "array", "items": items}}]}
    with pytest.raises(InvalidArgumentError, match="take no bytes"):
        penstock.AvroSerializer(schema)
    registry = penstock.MemorySchemaRegistry()
    number = registry.register("wide", Schema(kind=SchemaKind.AVRO, text=json.dumps(schema)))
    serializer = penstock.AvroSerializer(
        {"type": "record", "name": "R", "fields": []}, registry=registry, subject="wide"
    )
    with pytest.raises(DecodeError, match="cannot be parsed"):
        serializer.decode(b"\0" + number.to_bytes(4, "big") + b"\xfe\xff\xff\xff\x0f\0")


@pytest.mark.parametrize(
    "items", ["int", ["null", "int"], {"type": "map", "values": "null"}, {"type": "array", "items": "int"}]
)
def test_arrays_of_avro_whose_items_take_bytes_are_kept(items):
    schema = {"type": "record", "name": "R", "fields": [{"name": "all", "type": {"type": "array", "items": items}}]}
    serializer = penstock.AvroSerializer(schema)
    assert serializer.decode(serializer.encode({"all": []})) == {"all": []}
