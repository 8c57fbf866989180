"""Pravega's controller service as its own clients call it: by the messages of its interface."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from penstock.net.proto import Controller_pb2


class ControllerStub:
    """One attribute for each call of the service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        service = Controller_pb2.DESCRIPTOR.services_by_name["ControllerService"]
        for name, method in service.methods_by_name.items():
            call = channel.unary_unary(
                f"/{service.full_name}/{name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)
