"""No oracle of existence: a caller without rights on a stream, a group or a scope gets the same answer at every door,
whether it exists or not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import grpc
from access_calls import EVERY, command_of, request_of, routes_of
from access_world import Doors, run
from google.protobuf.message import Message

from penstock.codec.wire import frames as wire
from penstock.core.access.commands import WITHOUT_TOKEN
from penstock.model.identity import Action
from penstock.model.names import StreamName
from penstock.model.policies import StreamConfig
from penstock.net.http.path_rights import PUBLIC_PATHS
from penstock.net.native.calls import SERVICE
from penstock.net.proto import Controller_pb2 as pb
from penstock.net.wire.wire_errors import own_token

THERE, ABSENT = ("secret", "shop"), ("absent", "shoq")
"""A stream and a scope that exist, and ones that do not. They have the same length, so encoded requests stay valid."""
STRANGERS = ("none", "foreign", "reader", "writer")
"""Callers without rights on that stream. A reader and a writer have some on its neighbour ``orders``."""


async def secrets(opened: Doors) -> None:
    """Create what must stay hidden."""
    await opened.controller.streams.create(StreamName("shop", "secret"), StreamConfig())
    await opened.controller.scopes.create("shop.ns")
    await opened.controller.streams.create(StreamName("shop.ns", "secret"), StreamConfig())


def variants(request: bytes, caller: str) -> Sequence[tuple[bytes, bytes]]:
    """The request about the secret stream and about an absent one; for a caller from elsewhere, also about its scope and
    an absent one."""
    secret, absent = request.replace(b"orders", b"secret"), request.replace(b"orders", b"absent")
    found = [(secret, absent)]
    if caller in ("none", "foreign"):
        found.append((secret, absent.replace(b"shop", b"shoq")))
    return [pair for pair in found if pair[0] != pair[1]]


def plain(answer: Any) -> Any:
    """The answer without the names that the request had."""
    text = repr(answer)
    for there, absent in zip(THERE, ABSENT, strict=True):
        text = text.replace(absent, there)
    # Times and ids of requests differ.
    return re.sub(r"'date': '[^']*'", "", text)


async def called(opened: Doors, path: str, request: bytes, caller: str) -> tuple[object, ...]:
    metadata = [("authorization", opened.credentials[caller])] if opened.credentials[caller] else []
    try:
        return ("made", await opened.channel.unary_unary(path)(request, metadata=metadata, timeout=20))
    except grpc.aio.AioRpcError as error:
        return (error.code(), error.details(), tuple(error.trailing_metadata() or ()))


def test_calls_over_grpc_do_not_show_what_exists(tmp_path):
    async def test(opened: Doors) -> None:
        await secrets(opened)
        for name, (subject, method, call) in EVERY.items():
            request = request_of(subject, method, call)
            for caller in STRANGERS:
                for there, absent in variants(request, caller):
                    answers = [await called(opened, f"/{SERVICE}/{name}", one, caller) for one in (there, absent)]
                    assert plain(answers[0]) == plain(answers[1]), (name, caller)

    run(tmp_path, test)


def filled_in(message: Message) -> Message:
    """The message with names of a scope and a stream in all its texts."""
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            continue
        if field.message_type is not None:
            filled_in(getattr(message, field.name)).SetInParent()
        elif field.type == field.TYPE_STRING and field.name != "token":  # where a list goes on
            names = {"scope": "shop", "scopename": "shop"}
            setattr(message, field.name, names.get(field.name.lower(), "orders"))
    return message


def test_pravegas_calls_do_not_show_what_exists(tmp_path):
    async def test(opened: Doors) -> None:
        await secrets(opened)
        service = pb.DESCRIPTOR.services_by_name["ControllerService"]
        for method in service.methods:
            request = filled_in(getattr(pb, method.input_type.name)()).SerializeToString()
            for caller in STRANGERS:
                for there, absent in variants(request, caller):
                    path = f"/{service.full_name}/{method.name}"
                    answers = [await called(opened, path, one, caller) for one in (there, absent)]
                    assert plain(answers[0]) == plain(answers[1]), (method.name, caller)

    run(tmp_path, test)


def test_routes_over_http_do_not_show_what_exists(tmp_path):
    async def test(opened: Doors) -> None:
        await secrets(opened)
        for method, path in routes_of(opened):
            if path in PUBLIC_PATHS or not re.search(r"orders|/ns/t(/|$)|shop", path):
                continue
            path = re.sub(r"/ns/t(?=/|$)", "/ns/orders", path)
            for caller in STRANGERS:
                for pair in variants(path.encode(), caller):
                    there, absent = [await opened.http(method, one.decode(), caller) for one in pair]
                    assert plain((there.status, there.headers, there.data)) == plain(
                        (absent.status, absent.headers, absent.data)
                    ), (method, path, caller)

    run(tmp_path, test)


def test_commands_on_the_wire_do_not_show_what_exists(tmp_path):
    async def test(opened: Doors) -> None:
        await secrets(opened)
        every = frozenset({Action.READ, Action.WRITE, Action.ADMIN})
        tokens = ("", opened.issuer.issue("ann", StreamName("shop", "orders"), every))
        peer = await opened.peer()
        requests = {spec.kind for spec in wire.SPECS if spec.is_request} - WITHOUT_TOKEN
        for kind in sorted(requests, key=lambda one: one.__name__):
            for token in (*tokens, *map(own_token, tokens)):
                command = command_of(kind, token)
                if not any(isinstance(value, str) and "orders" in value for value in command):
                    continue
                asked = [
                    kind(
                        *(
                            value.replace("orders", name) if isinstance(value, str) and value != token else value
                            for value in command
                        )
                    )
                    for name in ("secret", "absent")
                ]
                answers = [await peer.ask(one) for one in asked]
                assert plain(answers[0]) == plain(answers[1]), (kind.__name__, token[:8])
        await peer.close()

    run(tmp_path, test)
