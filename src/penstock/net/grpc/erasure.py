"""The native calls about erasures. Described in docs/formats/native-api.md."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import SegmentId
from penstock.net.grpc import mapping
from penstock.net.grpc import native_mapping as own
from penstock.net.grpc.dispatch import Handler
from penstock.net.proto import native_pb2 as native
from penstock.ports.control.plane import ControlPlane


class ErasureCalls:
    """A part of the service ``penstock.v1.Native``."""

    def __init__(self, controller: ControlPlane) -> None:
        self._controller = controller

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "Erase": self.erase,
            "GetErasure": self.get,
            "ListErasures": self.list,
            "WithdrawErasure": self.withdraw,
        }

    async def erase(self, request: native.EraseRequest) -> native.JsonAnswer:
        positions: dict[SegmentId, list[int]] = {}
        for item in request.positions:
            positions.setdefault(SegmentId(item.segment), []).extend(item.offsets)
        if any(offset < 0 for offsets in positions.values() for offset in offsets) or request.page < 0:
            raise InvalidArgumentError("offset or page is negative", page=request.page)
        found = await self._controller.erasures.erase(
            mapping.stream_of(request.stream),
            own.json_of(request.json),
            positions,
            page=request.page if request.HasField("page") else None,
            last=request.last,
            dry_run=request.dry_run,
        )
        return own.json_message(found)

    async def get(self, request: native.ErasureRequest) -> native.JsonAnswer:
        if request.HasField("part"):
            if request.part < 0:
                raise InvalidArgumentError("part is negative", part=request.part)
            return own.json_message(await self._controller.erasures.part(request.id, request.part))
        return own.json_message(await self._controller.erasures.get(request.id))

    async def list(self, request: native.ErasuresRequest) -> native.JsonAnswer:
        stream = mapping.stream_of(request.stream) if request.HasField("stream") else None
        return own.json_message({"erasures": list(await self._controller.erasures.list(stream))})

    async def withdraw(self, request: native.WithdrawErasureRequest) -> native.JsonAnswer:
        found = await self._controller.erasures.withdraw(request.id, who=request.who, why=request.why)
        return own.json_message(found)
