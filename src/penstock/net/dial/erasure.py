"""Erasures of a remote control plane."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.net.dial.grpc_connection import GrpcConnection
from penstock.net.grpc import mapping
from penstock.net.grpc import native_mapping as own
from penstock.net.grpc.mapping import make
from penstock.net.proto import native_pb2 as native


class RemoteErasures:
    """The erasure calls of ``ControllerService``, with the same promises and errors."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection

    async def erase(
        self,
        stream: StreamName,
        asked: Mapping[str, Any],
        positions: Mapping[SegmentId, Sequence[int]],
        *,
        page: int | None = None,
        last: bool = True,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        request = make(
            native.EraseRequest,
            stream=mapping.stream_message(stream),
            json=json.dumps(dict(asked)),
            positions=[
                make(native.SegmentOffsets, segment=segment, offsets=list(offsets))
                for segment, offsets in positions.items()
            ],
            page=page,
            last=last,
            dry_run=dry_run,
        )
        return own.json_of((await self._connection.native("Erase", request)).json)

    async def erasure(self, erasure: str) -> Mapping[str, Any]:
        return own.json_of((await self._connection.native("GetErasure", make(native.ErasureRequest, id=erasure))).json)

    async def erasure_part(self, erasure: str, part: int) -> Mapping[str, Any]:
        request = make(native.ErasureRequest, id=erasure, part=part)
        return own.json_of((await self._connection.native("GetErasure", request)).json)

    async def erasures(self, stream: StreamName | None = None) -> Sequence[Mapping[str, Any]]:
        message = None if stream is None else mapping.stream_message(stream)
        reply = await self._connection.native("ListErasures", make(native.ErasuresRequest, stream=message))
        found: list[Mapping[str, Any]] = own.json_of(reply.json)["erasures"]
        return found

    async def withdraw_erasure(self, erasure: str, *, who: str, why: str) -> Mapping[str, Any]:
        request = make(native.WithdrawErasureRequest, id=erasure, who=who, why=why)
        return own.json_of((await self._connection.native("WithdrawErasure", request)).json)
