"""Pravega's calls on key-value tables, answered by a ``ControlPlane``.

Clients read and write the segments of a table through the segment store.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.model.errors import ScopeNotFoundError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentRange, even_ranges, make_segment_id
from penstock.net.access.doors import TokenDesk
from penstock.net.grpc import mapping
from penstock.net.grpc.dispatch import Handler
from penstock.net.proto import Controller_pb2 as pb
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.tables import TableConfig


class KeyValueTableCalls:
    """Pravega's calls on key-value tables."""

    def __init__(self, controller: ControlPlane, tokens: TokenDesk) -> None:
        self._controller = controller
        self._tokens = tokens
        self._tables = controller.tables

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "createKeyValueTable": self.create,
            "getCurrentSegmentsKeyValueTable": self.segments,
            "getKeyValueTableConfiguration": self.configuration,
            "deleteKeyValueTable": self.delete,
            "listKeyValueTablesInScope": self.list_tables,
        }

    async def create(self, request: pb.KeyValueTableConfig) -> pb.CreateKeyValueTableStatus:
        config = TableConfig(
            partitions=request.partitionCount,
            primary_key_bytes=request.primaryKeyLength,
            secondary_key_bytes=request.secondaryKeyLength,
            rollover_bytes=request.rolloverSizeBytes,
        )
        await self._tables.create(mapping.scope_of(request.scope), request.kvtName, config)
        return pb.CreateKeyValueTableStatus()

    async def segments(self, request: pb.KeyValueTableInfo) -> pb.SegmentRanges:
        config = await self._tables.get(request.scope, request.kvtName)
        ranges = [
            SegmentRange(segment=make_segment_id(0, number), keys=keys)
            for number, keys in enumerate(even_ranges(config.partitions))
        ]
        table = StreamName(request.scope, request.kvtName)
        message = mapping.ranges_message(table, ranges)
        message.delegationToken = self._tokens.token_or_none(table)
        return message

    async def configuration(self, request: pb.KeyValueTableInfo) -> pb.KeyValueTableConfigResponse:
        config = await self._tables.get(request.scope, request.kvtName)
        return pb.KeyValueTableConfigResponse(
            config=pb.KeyValueTableConfig(
                scope=request.scope,
                kvtName=request.kvtName,
                partitionCount=config.partitions,
                primaryKeyLength=config.primary_key_bytes,
                secondaryKeyLength=config.secondary_key_bytes,
                rolloverSizeBytes=config.rollover_bytes,
            )
        )

    async def delete(self, request: pb.KeyValueTableInfo) -> pb.DeleteKVTableStatus:
        await self._tables.delete(request.scope, request.kvtName)
        return pb.DeleteKVTableStatus()

    async def list_tables(self, request: pb.KVTablesInScopeRequest) -> pb.KVTablesInScopeResponse:
        scope, token = mapping.scope_of(request.scope.scope), request.continuationToken.token
        page = await self._tables.list(scope, after=token)
        if not page and not token and not await self._controller.scopes.exists(scope):
            raise ScopeNotFoundError("no such scope", scope=scope)
        return pb.KVTablesInScopeResponse(
            kvtables=[pb.KeyValueTableInfo(scope=scope, kvtName=name) for name in page],
            continuationToken=pb.ContinuationToken(token=page[-1] if page else token),
        )
