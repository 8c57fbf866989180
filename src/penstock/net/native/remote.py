"""The client side of our own calls: remote ports that are used as if they were in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

from penstock.codec.values import Call
from penstock.net.native.calls import About, control_calls, info_call, segment_calls, token_calls
from penstock.ports.control.batches import Batches
from penstock.ports.control.cuts import Cuts
from penstock.ports.control.erasures import Cases, Erasures
from penstock.ports.control.evidence import Evidence
from penstock.ports.control.groups import ReaderGroups
from penstock.ports.control.holds import Approvals, Holds
from penstock.ports.control.layout import Layout
from penstock.ports.control.policies import Policies
from penstock.ports.control.retention import Retention
from penstock.ports.control.scopes import Scopes
from penstock.ports.control.streams import Streams
from penstock.ports.control.subscribers import Subscribers
from penstock.ports.control.tables import KeyValueTables
from penstock.ports.control.transactions import Transactions
from penstock.ports.data.chunks import LeasedChunks
from penstock.ports.data.imports import ChunkImports
from penstock.ports.data.segments import SegmentInfo
from penstock.ports.data.space import DiskSpace, SegmentSpace
from penstock.ports.integrity import Scrubbable

Ask: TypeAlias = Callable[[Call, bytes], Awaitable[bytes]]
"""Sends a request and returns the reply. Raises what the call raises in the server; NotConnectedError."""


class NativeSegments(LeasedChunks, ChunkImports, Scrubbable, Protocol):
    """The calls of the segment store that the wire protocol lacks, with the same guarantees and errors.

    A server refuses with UnsupportedError the calls that its store does not offer.
    """

    async def infos(self, names: Sequence[str]) -> Mapping[str, SegmentInfo]: ...

    async def count_events(self, name: str, start: int, end: int) -> int: ...

    async def erased_ranges(self, name: str, start: int, end: int) -> Sequence[tuple[int, int]]: ...

    async def spaces(self, names: Sequence[str]) -> Mapping[str, SegmentSpace]: ...

    async def disk(self) -> DiskSpace: ...


class _Remote:
    """The calls of one subject."""

    def __init__(self, calls: Mapping[str, Call], ask: Ask) -> None:
        for name, call in calls.items():
            setattr(self, name, _method(call, ask))


def _method(call: Call, ask: Ask) -> Callable[..., Awaitable[Any]]:
    async def made(*arguments: Any, **named: Any) -> Any:
        return call.decode_reply(await ask(call, call.encode_request(arguments, named)))

    made.__name__, made.__doc__ = call.name, call.declared.__doc__
    return made


class RemoteControl:
    """A ``ControlPlane`` in another process. Every call raises what it raises there."""

    def __init__(self, ask: Ask) -> None:
        calls = control_calls()
        self.scopes = cast(Scopes, _Remote(calls["scopes"], ask))
        self.streams = cast(Streams, _Remote(calls["streams"], ask))
        self.layout = cast(Layout, _Remote(calls["layout"], ask))
        self.cuts = cast(Cuts, _Remote(calls["cuts"], ask))
        self.transactions = cast(Transactions, _Remote(calls["transactions"], ask))
        self.batches = cast(Batches, _Remote(calls["batches"], ask))
        self.groups = cast(ReaderGroups, _Remote(calls["groups"], ask))
        self.subscribers = cast(Subscribers, _Remote(calls["subscribers"], ask))
        self.policies = cast(Policies, _Remote(calls["policies"], ask))
        self.retention = cast(Retention, _Remote(calls["retention"], ask))
        self.holds = cast(Holds, _Remote(calls["holds"], ask))
        self.erasures = cast(Erasures, _Remote(calls["erasures"], ask))
        self.cases = cast(Cases, _Remote(calls["cases"], ask))
        self.evidence = cast(Evidence, _Remote(calls["evidence"], ask))
        self.approvals = cast(Approvals, _Remote(calls["approvals"], ask))
        self.tables = cast(KeyValueTables, _Remote(calls["tables"], ask))
        self.about = cast(About, _Remote({"info": info_call(), **token_calls()}, ask))
        self.segments = cast(NativeSegments, _Remote(segment_calls(), ask))
