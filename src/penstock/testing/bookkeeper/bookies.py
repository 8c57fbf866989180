"""Bookies in memory that speak wire protocol 2, and fail as real ones do.

What a bookie has not synced is lost when it restarts. It fences a ledger in memory first: a fencing read that finds an
entry is answered after the fence is synced, one that finds none is answered at once, as the real bookie does. A bookie
that came back without its disk answers 107 for what it lacks. A frame over the limit ends the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import field
from typing import Any

from penstock.codec.bookie import (
    FENCE,
    LAST_ENTRY,
    RECOVERY_ADD,
    Bytes,
    Code,
    Operation,
    Request,
    decode_request,
    encode_answer,
    take_frames,
)
from penstock.codec.ledger_metadata import LAYOUT, Registration, encode_registration
from penstock.model.errors import ProtocolError
from penstock.model.values.dataclass import dataclass
from penstock.testing.bookkeeper.nodes import MemoryNodes

FRAME_MAX_BYTES = 5 << 20
ROOT = "/ledgers"


@dataclass(slots=True)
class Stored:
    """What a bookie has of one ledger."""

    key: bytes = b""
    fenced: bool = False
    entries: dict[int, bytes] = field(default_factory=dict)

    def copy(self) -> Stored:
        return Stored(key=self.key, fenced=self.fenced, entries=dict(self.entries))


class SimBookie:
    """One bookie. ``sync_s``: time from a write to its sync; None: nothing is synced until ``sync`` is called."""

    def __init__(self, name: str, *, sync_s: float | None = 0.0) -> None:
        self.name = name
        self.sync_s = sync_s
        self.is_up = True
        self.is_silent = False
        self.read_only = False
        self.lost_data = False
        self.frame_max_bytes = FRAME_MAX_BYTES
        self.busy = 0
        """So many adds are answered 106."""
        self.on_add: Callable[[int, int], None] = lambda ledger, entry: None
        """Called with the ledger and the number of each entry that it has taken."""
        self.memory: dict[int, Stored] = {}
        self.disk: dict[int, Stored] = {}
        self._journal: list[Callable[[], None]] = []
        self._links: list[_Link] = []

    # --- faults

    def sync(self) -> None:
        """Everything written so far is on disk; what waits for it is answered."""
        self.disk = {ledger: stored.copy() for ledger, stored in self.memory.items()}
        journal, self._journal = self._journal, []
        for done in journal:
            done()

    def stop(self) -> None:
        """Lose what is not synced, and all connections."""
        self.is_up = False
        self._journal = []
        self.memory = {ledger: stored.copy() for ledger, stored in self.disk.items()}
        links, self._links = self._links, []
        for link in links:
            link.end()

    def start(self, *, without_disk: bool = False) -> None:
        """Come back with what is on disk. ``without_disk``: with nothing, and knowing it."""
        if without_disk:
            self.memory, self.disk, self.lost_data = {}, {}, True
        self.is_up = True

    def collect(self, living: Sequence[int]) -> None:
        """Free ledgers that are not among these."""
        for held in (self.memory, self.disk):
            for ledger in [one for one in held if one not in living]:
                del held[ledger]

    # --- the protocol

    def attach(self, link: _Link) -> None:
        self._links.append(link)

    def serve(self, request: Request, answer: Callable[[int, Sequence[Bytes]], None]) -> None:
        """Perform a request; ``answer`` is called once, or never by a silent bookie."""
        if self.is_silent:
            return
        if request.operation is Operation.ADD:
            self._add(request, answer)
        elif request.operation is Operation.READ:
            self._read(request, answer)
        elif request.operation is Operation.BATCH_READ:
            self._read_batch(request, answer)
        else:
            answer(Code.BAD_REQUEST, [])

    def _add(self, request: Request, answer: Callable[[int, Sequence[Bytes]], None]) -> None:
        if self.busy:
            self.busy -= 1
            answer(Code.TOO_MANY_REQUESTS, [])
            return
        if self.read_only:
            answer(Code.READ_ONLY, [])
            return
        stored = self.memory.setdefault(request.ledger, Stored(key=request.key))
        stored.key = stored.key or request.key
        if stored.key != request.key:
            answer(Code.UNAUTHORIZED, [])
        elif stored.fenced and not request.flags & RECOVERY_ADD:
            answer(Code.FENCED, [])
        else:
            stored.entries.setdefault(request.entry, request.entry_bytes)
            self.on_add(request.ledger, request.entry)
            self._once_synced(lambda: answer(Code.OK, []))

    def _read(self, request: Request, answer: Callable[[int, Sequence[Bytes]], None]) -> None:
        fences = bool(request.flags & FENCE)
        if fences:
            stored = self.memory.setdefault(request.ledger, Stored(key=request.key))
            stored.fenced = True
        found = self.memory.get(request.ledger)
        entries = {} if found is None else found.entries
        number = max(entries, default=0) if request.entry == LAST_ENTRY else request.entry
        data = entries.get(number)
        if data is None:
            if fences:
                self._once_synced(lambda: None)
            answer(self._lacks(found is not None and bool(entries)), [])
        elif fences:
            self._once_synced(lambda: answer(Code.OK, [data]))
        else:
            answer(Code.OK, [data])

    def _read_batch(self, request: Request, answer: Callable[[int, Sequence[Bytes]], None]) -> None:
        stored = self.memory.get(request.ledger)
        entries = {} if stored is None else stored.entries
        found: list[Bytes] = []
        size = 0
        for number in range(request.entry, request.entry + request.entries_max):
            data = entries.get(number)
            if data is None or (found and size + len(data) > request.size_max_bytes):
                break
            found.append(data)
            size += len(data)
        answer(Code.OK if found else self._lacks(bool(entries)), found)

    def _lacks(self, knows_ledger: bool) -> int:
        if self.lost_data:
            return Code.UNKNOWN_STATE
        return Code.NO_ENTRY if knows_ledger else Code.NO_LEDGER

    def _once_synced(self, done: Callable[[], None]) -> None:
        self._journal.append(done)
        if self.sync_s is not None and len(self._journal) == 1:
            asyncio.get_running_loop().call_later(self.sync_s, self.sync, context=Context())


class _Link(asyncio.Transport):
    """One connection in memory, seen from the client. ``delay_s``: for each message, how long it is under way; later ones
    never overtake it. None: until the next pass of the loop.

    A request arrives outside of its client's context, because a client that is paused stops no bookie."""

    def __init__(self, bookie: SimBookie, client: asyncio.Protocol, delay_s: Callable[[], float] | None) -> None:
        super().__init__()
        self._bookie = bookie
        self._client = client
        self._delay_s = delay_s
        self._there_s = self._back_s = 0.0
        self._buffer = bytearray()
        self._ended = False
        self._context = copy_context()
        bookie.attach(self)

    def write(self, data: Bytes) -> None:
        if self._ended:
            return
        loop = asyncio.get_running_loop()
        if self._delay_s is None:
            loop.call_soon(self._arrive, bytes(data), context=Context())
        else:
            self._there_s = max(self._there_s, loop.time() + self._delay_s())
            loop.call_at(self._there_s, self._arrive, bytes(data), context=Context())

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def abort(self) -> None:
        self.end()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            asyncio.get_running_loop().call_soon(self._client.connection_lost, None, context=self._context)

    def _arrive(self, data: bytes) -> None:
        if self._ended or not self._bookie.is_up:
            return
        self._buffer += data
        try:
            frames = take_frames(self._buffer, frame_max_bytes=self._bookie.frame_max_bytes)
            requests = [decode_request(frame) for frame in frames]
        except ProtocolError:
            self.end()
            return
        for request in requests:
            self._bookie.serve(request, self._answerer(request))

    def _answerer(self, request: Request) -> Callable[[int, Sequence[Bytes]], None]:
        loop = asyncio.get_running_loop()

        def answer(code: int, body: Sequence[Bytes]) -> None:
            data = b"".join(encode_answer(request, code, body))
            if self._delay_s is None:
                loop.call_soon(self._deliver, data, context=self._context)
            else:
                self._back_s = max(self._back_s, loop.time() + self._delay_s())
                loop.call_at(self._back_s, self._deliver, data, context=self._context)

        return answer

    def _deliver(self, data: bytes) -> None:
        if not self._ended:
            self._client.data_received(data)


class SimBookKeeper:
    """Bookies ``bookie-0`` to ``bookie-<count - 1>`` and the nodes that name them. ``delay_s``: how long each message is
    under way; None: until the next pass of the loop."""

    def __init__(self, count: int = 3, *, sync_s: float | None = 0.0) -> None:
        self.nodes = MemoryNodes()
        self.nodes.nodes[f"{ROOT}/LAYOUT"] = (LAYOUT, 0)
        self.nodes.nodes[f"{ROOT}/INSTANCEID"] = (b"simulated", 0)
        self.nodes.nodes[f"{ROOT}/available/readonly"] = (b"", 0)
        self.delay_s: Callable[[], float] | None = None
        self.bookies: dict[str, SimBookie] = {}
        for number in range(count):
            name = f"bookie-{number}"
            self.bookies[name] = SimBookie(name, sync_s=sync_s)
            self.register(name)

    def register(self, name: str) -> None:
        place = Registration(host=name, port=3181)
        self.nodes.nodes[f"{ROOT}/available/{name}"] = (encode_registration(place), 0)

    def unregister(self, name: str) -> None:
        """The bookie's session ended."""
        del self.nodes.nodes[f"{ROOT}/available/{name}"]

    def become(self, other: SimBookKeeper) -> None:
        """Copy the ledgers and nodes of another one with as many bookies, which nobody uses at this time."""
        self.nodes.copy_from(other.nodes)
        for name, bookie in self.bookies.items():
            found = other.bookies[name]
            bookie.memory = {ledger: stored.copy() for ledger, stored in found.memory.items()}
            bookie.disk = {ledger: stored.copy() for ledger, stored in found.disk.items()}

    async def connect(self, host: str, port: int, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Implements ``storage.ledgers.connections.Connect``."""
        self.link(host, port, protocol, self.delay_s)

    def link(
        self, host: str, port: int, protocol: Callable[[], asyncio.Protocol], delay_s: Callable[[], float] | None
    ) -> Callable[[], None]:
        """Connect a client with delays of its own. Returns what ends the connection. Raises ConnectionRefusedError."""
        bookie = self.bookies.get(host)
        if bookie is None or not bookie.is_up:
            raise ConnectionRefusedError(f"{host}:{port}")
        client = protocol()
        made = _Link(bookie, client, delay_s)
        client.connection_made(made)
        return made.end
