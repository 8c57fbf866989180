"""Schema registries: one suite of laws for each; over HTTP also credentials, retries, faults and known schemas."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import socket
import threading
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import protobuf_messages
import pytest
import urllib3
from registry_world import basic, reads, serving_registry

import penstock
from penstock.client.serializing.confluent import ANSWER_MAX_BYTES, ConfluentSchemaRegistry
from penstock.client.serializing.memory import MemorySchemaRegistry
from penstock.model.errors import (
    InvalidArgumentError,
    SchemaNotFoundError,
    SchemaRegistryRefusedError,
    SchemaRegistryUnavailableError,
)
from penstock.ports.schemas import Schema, SchemaKind
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.schemas import SchemaRegistryLaws, order_schema

ORDER = order_schema("long")


@pytest.fixture(scope="module")
def server():
    with serving_registry() as stub:
        yield stub


@pytest.fixture
def stub(server):
    server.faults.clear()
    server.asked.clear()
    server.authorization.clear()
    server.required = None
    return server


class MemoryLaws(SchemaRegistryLaws):
    def __init__(self):
        self._registry = MemorySchemaRegistry(reads)
        self._names = itertools.count()

    def open(self):
        return self._registry

    def subject(self):
        return f"orders {next(self._names)}/value"


class HttpLaws(MemoryLaws):
    def __init__(self, url):
        super().__init__()
        self._registry = ConfluentSchemaRegistry(url)

    def subject(self):
        return f"orders {uuid.uuid4()}/value"


@pytest.mark.parametrize("law", laws(SchemaRegistryLaws))
def test_a_registry_in_memory_keeps_the_laws(law):
    run_conformance(MemoryLaws, law=law)


@pytest.mark.parametrize("law", laws(SchemaRegistryLaws))
def test_a_registry_over_http_keeps_the_laws(stub, law):
    run_conformance(lambda: HttpLaws(stub.url), law=law)


def test_a_known_schema_needs_no_registry(stub):
    registry = ConfluentSchemaRegistry(stub.url, retries=0)
    number = registry.register("known", ORDER)
    assert registry.schema(number) == ORDER
    stub.faults[:] = [503] * 9
    assert registry.schema(number) == ORDER
    with pytest.raises(SchemaRegistryUnavailableError) as caught:
        registry.schema(number + 1)
    assert caught.value.fields["status"] == 503


@pytest.mark.parametrize("fault", [503, 429, 500, None])
def test_what_passes_is_tried_again(stub, fault):
    stub.faults[:] = [fault, fault]
    registry = ConfluentSchemaRegistry(stub.url, retries=2)
    number = registry.register("again", ORDER)
    assert len(stub.asked) == 3
    assert registry.schema(number) == ORDER
    stub.faults[:] = [fault] * 3
    with pytest.raises(SchemaRegistryUnavailableError):
        registry.register("again", ORDER)
    assert registry.register("again", ORDER) == number


def test_a_registry_that_is_down_or_silent_is_a_typed_error_within_its_time():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SchemaRegistryUnavailableError):
            ConfluentSchemaRegistry(url, timeout_s=0.05, retries=1).latest("s")
    with pytest.raises(SchemaRegistryUnavailableError):
        ConfluentSchemaRegistry(url, timeout_s=0.5, retries=1).latest("s")


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'{"id": "x"}', b"[]", b'{"schema": "x", "schemaType": "XML"}'])
def test_an_answer_of_something_else_is_a_typed_error(stub, answer):
    registry = ConfluentSchemaRegistry(stub.url)
    for call in (lambda: registry.schema(991), lambda: registry.register("s", ORDER), lambda: registry.latest("s")):
        stub.faults[:] = [answer]
        with pytest.raises(SchemaRegistryUnavailableError):
            call()


@pytest.mark.parametrize(("status", "kind"), [(404, SchemaNotFoundError), (500, SchemaRegistryUnavailableError)])
def test_a_failure_that_is_nested_deep_is_a_typed_error(status, kind):
    class Deep(BaseHTTPRequestHandler):
        def do_GET(self):
            body = b'{"x":' + b"[" * 100_000
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Deep) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            with pytest.raises(kind):
                ConfluentSchemaRegistry(f"http://127.0.0.1:{server.server_port}", retries=0).schema(7)
        finally:
            server.shutdown()
            serving.join()


def test_an_answer_without_end_is_not_read_to_its_end(stub):
    stub.faults[:] = [b" " * (ANSWER_MAX_BYTES + 1)]
    with pytest.raises(SchemaRegistryUnavailableError):
        ConfluentSchemaRegistry(stub.url).schema(991)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"user": "anna", "password": "s3cret"}, basic("anna", "s3cret")),
        ({"token": "t0ken"}, "Bearer t0ken"),
        ({"in_url": "anna:s3cret@"}, basic("anna", "s3cret")),
    ],
)
def test_credentials_are_sent_and_never_shown(stub, given, wanted):
    stub.required = wanted
    url = stub.url.replace("//", "//" + given.pop("in_url", ""))
    registry = ConfluentSchemaRegistry(url, **given)
    registry.register("secret", ORDER)
    assert set(stub.authorization) == {wanted}
    stub.required = "something else"
    with pytest.raises(SchemaRegistryRefusedError) as caught:
        registry.latest("secret")
    assert "s3cret" not in f"{caught.value} {caught.value.fields} {registry!r}"
    assert "t0ken" not in f"{caught.value} {caught.value.fields} {registry!r}"


def test_a_redirect_is_not_followed_with_the_credentials(stub):
    stub.faults[:] = [307]
    with pytest.raises(SchemaRegistryUnavailableError):
        ConfluentSchemaRegistry(stub.url, token="t").latest("s")
    assert len(stub.asked) == 1


def test_what_is_no_schema_is_refused(stub):
    registry = ConfluentSchemaRegistry(stub.url)
    with pytest.raises(InvalidArgumentError) as caught:
        registry.register("bad", Schema(kind=SchemaKind.AVRO, text='{"type": "recorrd"}'))
    assert caught.value.fields["status"] == 422
    with pytest.raises(SchemaNotFoundError):
        registry.latest("bad")


@pytest.mark.parametrize("url", ["", "host:8081", "ftp://h", "http://", "http://h:x", "http://h?a=1", 7])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(InvalidArgumentError):
        ConfluentSchemaRegistry(url)


def test_a_user_and_a_token_together_are_refused():
    for given in ({"user": "a", "token": "t"}, {"timeout_s": 0}, {"retries": -1}):
        with pytest.raises(InvalidArgumentError):
            ConfluentSchemaRegistry("http://h", **given)
    with pytest.raises(InvalidArgumentError):
        ConfluentSchemaRegistry("http://a:b@h", user="a")


def test_a_registry_can_be_pickled_to_another_process(stub):
    registry = ConfluentSchemaRegistry(stub.url + "/", token="t")
    number = registry.register("pickled", ORDER)
    other = pickle.loads(pickle.dumps(registry))
    assert other.schema(number) == ORDER
    other.close()
    assert other.latest("pickled").id == number


@pytest.fixture
def real():
    """A real registry: ``make test-registry`` starts Apicurio Registry and names it here."""
    url = os.environ.get("PENSTOCK_SCHEMA_REGISTRY")
    if url is None:
        pytest.skip("PENSTOCK_SCHEMA_REGISTRY names no registry; make test-registry starts one")
    return url


@pytest.mark.slow
@pytest.mark.parametrize("law", laws(SchemaRegistryLaws))
def test_a_real_registry_keeps_the_laws(real, law):
    # Its default is no compatibility at all.
    urllib3.request("PUT", f"{real}/config", json={"compatibility": "BACKWARD"})
    run_conformance(lambda: HttpLaws(real), law=law)


@pytest.mark.slow
def test_a_real_registry_refuses_what_is_no_schema(real):
    with pytest.raises(InvalidArgumentError):
        ConfluentSchemaRegistry(real).register(
            f"bad-{uuid.uuid4()}", Schema(kind=SchemaKind.AVRO, text=json.dumps({"type": "recorrd"}))
        )


class Order(msgspec.Struct):
    number: int


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda **given: penstock.AvroSerializer(json.loads(ORDER.text), **given), {"number": 7}),
        (lambda **given: penstock.JsonSerializer(Order, **given), Order(number=7)),
        (
            lambda **given: penstock.ProtobufSerializer(protobuf_messages.Order, **given),
            protobuf_messages.Order(number=7),
        ),
    ],
    ids=["avro", "json", "protobuf"],
)
def test_serializers_work_with_a_real_registry(real, make, value):
    subject = f"orders-{uuid.uuid4()}-value"
    writer, reader = (make(registry=ConfluentSchemaRegistry(real), subject=subject) for _ in range(2))
    data = writer.encode(value)
    assert int.from_bytes(data[1:5], "big") == ConfluentSchemaRegistry(real).latest(subject).id
    assert reader.decode(data) == value
    assert make(registry=ConfluentSchemaRegistry(real), subject=subject, register=False).encode(value) == data
