"""The appends of one connection: writers bound to segments, blocks assembled, acknowledgements in order.

Appends of one writer that arrive one behind the other are passed on as one run, and one reply acknowledges them. Our
own clients instead send an AppendMany: its appends are passed on together, each is decided by itself, and one reply
answers them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.codec.events import HEADER_BYTES
from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import (
    BLOCK_END_DATA_AT,
    BlockRun,
    Command,
    block_trailer,
    data_appended,
    decode,
    decode_block_end,
    decode_many,
    encode,
    many_appended,
)
from penstock.model.errors import (
    ConditionFailedError,
    PenstockError,
    ProtocolError,
    QuotaHeldError,
    SegmentSealedError,
    StorageFullError,
    ThrottledError,
    WriterFencedError,
)
from penstock.net.wire.append_meter import AppendMeter
from penstock.net.wire.crowd import Crowd
from penstock.net.wire.frames import FrameReceiver
from penstock.net.wire.in_flight import OVERHEAD_BYTES, Binding, InFlight, Many
from penstock.net.wire.wire_errors import TOKEN_EXPIRED, reply_of
from penstock.ports.data.segments import APPEND_MAX_BYTES, Append, Appended, AppendedPart
from penstock.ports.data.service import ServedStore
from penstock.ports.files import Buffer

_RUN_BYTES = 64 << 10
"""Bytes of a run, with the overhead of each append: its data are copied together, and larger appends cost more to copy
than to pass on."""
_HELD_DOUBLINGS = 4  # doublings; a waiting append is retried after at most 16 times the first pause


class AppendHost(Protocol):
    """The part of the connection that its appends use."""

    @property
    def must_copy(self) -> bool:
        """Whether memory is so short that views must be copied: a view keeps its whole receive buffer alive."""
        ...

    def release(self, size_bytes: int) -> None:
        """Count bytes as answered that ``AppendSide.taken_bytes`` reported."""
        ...

    def soon(self, call: Callable[[], None]) -> None:
        """Call in the next pass of the event loop."""
        ...

    def after_pause(self, call: Callable[[], None], times: int) -> None:
        """Call once the store may have room again: after ``times`` times the usual pause."""
        ...

    def send(self, frame: bytes) -> None:
        """Queue one encoded frame."""
        ...

    def reply(self, command: Command) -> None: ...

    def fail(self, error: PenstockError) -> None:
        """Send what is queued, log the reason and close the connection."""
        ...


class AppendSide:
    """Takes append frames, hands them to the store as views, and answers them in order."""

    def __init__(self, host: AppendHost, store: ServedStore, meter: AppendMeter) -> None:
        self._host = host
        self._store = store
        # None: a SetupAppend is in progress.
        self._bindings: dict[bytes, Binding | None] = {}
        self._handles: dict[int, Binding] = {}
        self._last_handle = 0
        self.open: tuple[c.AppendBlock, int, memoryview] | None = None
        """The open block, if any: the next frame must be its end."""
        self._crowd: Crowd[Binding] = Crowd(host.after_pause, self._retry)
        self._closed = False
        self._answered_bytes = 0
        self.taken_bytes = 0
        """Bytes received that the host has not counted yet; the host resets this to 0."""
        self.meter = meter

    @property
    def open_bytes(self) -> int:
        """Bytes held of a block whose end has not arrived."""
        return len(self.open[0].data) if self.open is not None else 0

    @property
    def writers(self) -> int:
        return len(self._bindings)

    def begin_setup(self, writer: bytes) -> None:
        """Forget the writer's binding; the writer sends nothing before its AppendSetup.

        Appends that the store has are still answered. Appends that wait behind a condition are dropped; the client
        sends them again.
        """
        binding = self._bindings.get(writer)
        if binding is not None:
            binding.replaced = True
            if binding.handle is not None:
                self._handles.pop(binding.handle, None)
            self._drop_waiting(binding)
        self._bindings[writer] = None

    def finish_setup(self, writer: bytes, segment: str, last_number: int, *, is_own: bool = False) -> int | None:
        """Accept the writer's appends. ``is_own``: the writer is our own client. It gets an error if the disk is full
        or a quota makes it wait; for other clients the store only becomes slow. It may also send many appends in one
        frame, under the handle returned."""
        handle = None
        if is_own:
            self._last_handle = handle = self._last_handle + 1
        binding = Binding(writer, segment, last_number, knows_full=is_own, handle=handle)
        self._bindings[writer] = binding
        if handle is not None:
            self._handles[handle] = binding
        return handle

    def abandon_setup(self, writer: bytes) -> None:
        if self._bindings.get(writer, self) is None:
            del self._bindings[writer]

    def expire(self, writer: bytes, rid: int) -> bool:
        """Take no more appends of the writer before it is set up again: its token has expired. Appends that the store has
        are not answered; the next setup reports which of them are stored. False: the writer is still being set up."""
        binding = self._bindings.get(writer)
        if binding is None:
            return writer not in self._bindings
        if not binding.failed:
            binding.failed = True
            self._drop_waiting(binding)
            self._host.reply(c.AuthTokenCheckFailed(rid, "", TOKEN_EXPIRED))
        return True

    def close(self) -> None:
        """Answer nothing more. Appends that the store has may or may not become durable; appends that wait here are
        dropped."""
        self._closed = True
        self._crowd.close()
        self.open = None
        for binding in self._bindings.values():
            if binding is not None:
                self._drop_waiting(binding)
        self._bindings.clear()
        self._handles.clear()

    def block(self, receiver: FrameReceiver) -> None:
        """Keep an AppendBlock until its end arrives. Raises ProtocolError."""
        command = decode(receiver.code, receiver.payload)
        if not isinstance(command, c.AppendBlock):
            raise ProtocolError("a block was expected", code=receiver.code)
        self._known(command.writer)
        self.open = command, receiver.at + 16, receiver.view

    def block_end(self, receiver: FrameReceiver, room_bytes: int) -> None:
        """Append a block, and those of the same writer that follow it as long as ``room_bytes`` are not reached. Raises
        ProtocolError."""
        end = decode_block_end(receiver.payload)
        binding = self._bindings.get(end.writer) or self._known(end.writer)
        data: Buffer = end.data
        run: BlockRun | None = None
        if self.open is not None:
            data = self._assembled(receiver, end, *self.open)
            self.open = None
        elif (
            receiver.partial_bytes
            and data
            and not (binding.failed or binding.knows_full or self.meter.around is not None)
        ):
            # Our own clients gather small appends themselves, and use the length after each.
            left_bytes = min(_RUN_BYTES, room_bytes - self.taken_bytes) - len(data) - OVERHEAD_BYTES
            run = receiver.block_ends(end.writer, end.event_number, left_bytes, OVERHEAD_BYTES)
        self._take(binding, data, end.event_count, end.event_number, end.rid, None, run=run)

    def many(self, payload: memoryview) -> None:
        """Append the contents of an AppendMany, in order. Raises ProtocolError; appends before the fault are not
        undone."""
        rid, heads, at = decode_many(payload)
        if self.open is not None:
            raise ProtocolError("a block was not ended")
        must_copy, handles = self._host.must_copy, self._handles
        many = Many(self, rid, len(heads))
        index = 0
        try:
            for index, (handle, count, number, size) in enumerate(heads):
                binding = handles.get(handle)
                if binding is None:
                    raise ProtocolError("append from a writer that is not set up", handle=handle)
                data: bytes | memoryview = payload[at : at + size]
                at += size
                if binding.failed or binding.gate is not None:
                    self._take(binding, data, count, number, rid, None, many, index)
                    continue
                _check(binding, count, number, size)
                many.add(binding, bytes(data) if must_copy else data, count, number, index)
        except ProtocolError:
            many.left -= len(heads) - index
            raise
        finally:
            self._submit_many(many)

    def _submit_many(self, many: Many) -> None:
        appends = many.appends
        if appends:
            self.taken_bytes += many.size
            self.meter.arrived(many)
            self._store.submit_appends(appends, many)

    def many_finished(self, many: Many, places: Sequence[int], outcome: Sequence[int] | PenstockError) -> None:
        """Take the store's outcome of some appends of a frame. For each writer, outcomes come in order of submission."""
        if isinstance(outcome, PenstockError):
            for place in places:
                self.finished(many.single(place), outcome)
            return
        bindings, appends, indexes, lengths = many.bindings, many.appends, many.indexes, many.lengths
        closed, stored, events, data_bytes, size_bytes = self._closed, 0, 0, 0, 0
        for place, length in zip(places, outcome, strict=True):
            binding = bindings[place]
            binding.in_flight -= 1
            _, _, data, number, count, _ = appends[place]
            size = len(data)
            size_bytes += size
            if closed or binding.failed:
                continue
            lengths[indexes[place]] = length
            binding.acked = number
            binding.held = 0
            events += count
            data_bytes += size
            stored += 1
        if stored:
            self.meter.acknowledged(many, stored, events, data_bytes)
        self._decided(many, len(places))
        self._settled(size_bytes + OVERHEAD_BYTES * len(places))

    def conditional(self, command: c.ConditionalAppend | c.ConditionalBlockEnd) -> None:
        """Append if the segment has the expected length. Raises ProtocolError.

        In Pravega's protocol it holds one event. In ours it may hold several: the event number grows by their count.
        """
        data = command.event if isinstance(command, c.ConditionalAppend) else command.data
        binding = self._known(command.writer)
        number, count = command.event_number, 1
        if binding.knows_full:
            count = max(1, min(number - max(0, binding.received), len(data) // HEADER_BYTES))
        self._take(binding, data, count, number, command.rid, command.expected_offset)

    def _known(self, writer: bytes) -> Binding:
        binding = self._bindings.get(writer)
        if binding is None:
            raise ProtocolError("append from a writer that is not set up", writer=writer.hex())
        return binding

    @staticmethod
    def _assembled(
        receiver: FrameReceiver, end: c.AppendBlockEnd, block: c.AppendBlock, at: int, view: memoryview
    ) -> Buffer:
        if block.writer != end.writer:
            raise ProtocolError("block was ended by another writer", writer=end.writer.hex())
        whole = end.whole_bytes
        trailer = block_trailer(memoryview(block.data), whole)
        size = len(end.data)
        if not size and not len(trailer):
            return block.data[:whole]
        if view is not receiver.view:
            return b"".join((block.data[:whole], trailer, end.data))
        # Both frames lie one after the other in one arena, and only these bytes are missing at the block's end. Moving
        # them down over frame headers that were already parsed saves copying the block.
        to = at + whole
        view[to : to + len(trailer)] = trailer
        to += len(trailer)
        source = receiver.at + BLOCK_END_DATA_AT
        view[to : to + size] = view[source : source + size]
        return view[at : to + size]

    def _take(
        self,
        binding: Binding,
        data: Buffer,
        count: int,
        number: int,
        rid: int,
        expected: int | None,
        many: Many | None = None,
        index: int = 0,
        run: BlockRun | None = None,
    ) -> None:
        if binding.failed:
            # Sent before the client saw the error; it will set up again and send what is missing.
            if many is not None:
                self._decided(many)
            return
        _check(binding, count, number, len(data))
        if run is None and self._host.must_copy:
            data = bytes(data)
        item = InFlight(self, binding, data, count, number, rid, expected, many, index)
        if run is not None:
            item.add(run)
        binding.received = item.number
        self.taken_bytes += item.size
        self.meter.arrived(item)
        if binding.gate is not None:
            binding.waiting.append(item)
        else:
            self._submit(item)

    def _submit(self, item: InFlight) -> None:
        binding = item.binding
        item.previous = binding.submitted
        binding.submitted = item.number
        # Appends after a condition wait for its outcome: only then is the number before theirs known.
        if item.expected is not None:
            binding.gate = item
        request = Append(
            segment=binding.segment,
            writer=binding.id,
            data=item.data,
            event_number=item.number,
            event_count=item.count,
            previous=item.previous,
            expected_offset=item.expected,
            pieces=item.pieces,
        )
        binding.in_flight += 1
        self._store.submit_append(request, item)

    def finished(self, item: InFlight, outcome: Appended | PenstockError) -> None:
        """Take an outcome from the store, in order of submission for each writer."""
        binding = item.binding
        if type(outcome) is AppendedPart:
            self._stored_part(item, outcome.end_offset, outcome.event_number)
            return
        binding.in_flight -= 1
        if self._closed or binding.failed:
            self._answered(item)
            return
        if isinstance(outcome, Appended):
            if item.many is not None:
                item.many.lengths[item.index] = outcome.end_offset
            else:
                self._host.send(data_appended(binding.writer, item.number, binding.acked, item.rid, outcome.end_offset))
            binding.acked = item.number
            binding.held = 0
            self.meter.acknowledged(item, item.appends, item.count, len(item.data))
        elif self._must_wait(binding, outcome):
            if isinstance(outcome, QuotaHeldError):
                binding.held += 1
            self._stall(item)
            return
        elif item.expected is not None and isinstance(outcome, ConditionFailedError):
            binding.submitted = item.previous
            if not binding.waiting:
                binding.received = item.previous
            self._host.reply(c.ConditionalCheckFailed(binding.writer, item.number, item.rid))
        else:
            self._refuse(item, outcome)
        self._answered(item, None if isinstance(outcome, Appended) else outcome)
        if binding.gate is item:
            binding.gate = None
            while binding.waiting and binding.gate is None:
                self._submit(binding.waiting.popleft())

    def _stored_part(self, item: InFlight, length: int, number: int) -> None:
        """The first appends of a run are stored, up to this number."""
        binding = item.binding
        size_bytes = item.size
        appends, events, data_bytes, rid = item.remove(number)
        self._settled(size_bytes - item.size)
        if self._closed or binding.failed:
            return
        self._host.send(data_appended(binding.writer, number, binding.acked, rid, length))
        binding.acked = number
        binding.held = 0
        self.meter.acknowledged(item, appends, events, data_bytes)

    @staticmethod
    def _must_wait(binding: Binding, error: PenstockError) -> bool:
        return (
            isinstance(error, ThrottledError)
            or (isinstance(error, StorageFullError | QuotaHeldError) and not binding.knows_full)
            or bool(binding.stalled)  # also if it is refused for another reason: outcomes come in order
        )

    def _stall(self, item: InFlight) -> None:
        """Keep an append that the store has no room for, and all appends behind it, which fail because it was not
        stored.

        Their bytes stay counted, so that the socket is not read further: this is how a slow store slows its writers.
        """
        binding = item.binding
        if binding.replaced:
            self._answered(item)
            return
        if not binding.stalled:
            binding.submitted = item.previous
            binding.gate = item
        binding.stalled.append(item)
        self.meter.throttled()
        if binding.in_flight:
            return
        if binding.held:
            # A quota may hold very many writers for hours: the longer a writer waits, the less often it retries.
            times = 1 << min(_HELD_DOUBLINGS, binding.held - 1)
            self._host.after_pause(lambda: self._retry(binding), times)
            return
        self._crowd.add(binding)

    def _retry(self, binding: Binding) -> None:
        if self._closed or binding.failed or binding.replaced:
            self._drop_waiting(binding)
            return
        binding.waiting.extendleft(reversed(binding.stalled))
        binding.stalled.clear()
        # Only the first append asks whether there is room: the others follow its acknowledgement.
        binding.gate = binding.waiting.popleft()
        self._submit(binding.gate)

    def _refuse(self, item: InFlight, error: PenstockError) -> None:
        binding = item.binding
        binding.failed = True
        self._drop_waiting(binding)
        number, rid = item.first
        if isinstance(error, WriterFencedError):
            self._host.reply(c.InvalidEventNumber(binding.writer, rid, "", number))
            self._host.fail(error)
            return
        # The reply for a sealed segment carries the event number; other replies carry no position.
        place = number if isinstance(error, SegmentSealedError) else c.NO_OFFSET
        reply = reply_of(error, rid, binding.segment, offset=place)
        if reply is None:
            self._host.fail(error)
        elif item.many is not None:
            item.many.failed(item.index, encode(reply))
        else:
            self._host.reply(reply)

    def _drop_waiting(self, binding: Binding) -> None:
        for item in (*binding.stalled, *binding.waiting):
            self._answered(item)
        binding.stalled.clear()
        binding.waiting.clear()

    def _answered(self, item: InFlight, error: PenstockError | None = None) -> None:
        """The append has ended, whatever its outcome."""
        self.meter.ended(item, error)
        if item.many is not None:
            self._decided(item.many)
        self._settled(item.size)

    def _settled(self, size_bytes: int) -> None:
        # Counted once per pass: acknowledgements come in thousands.
        if not self._answered_bytes:
            self._host.soon(self._settle)
        self._answered_bytes += size_bytes

    def _decided(self, many: Many, count: int = 1) -> None:
        many.left -= count
        if many.left:
            return
        self.meter.ended(many)
        if not self._closed:
            self._host.send(many_appended(many.rid, many.lengths, many.failures))

    def _settle(self) -> None:
        size_bytes, self._answered_bytes = self._answered_bytes, 0
        self._host.release(size_bytes)


def _check(binding: Binding, count: int, number: int, size: int) -> None:
    if count <= 0:
        raise ProtocolError("append holds no events", event_count=count, event_number=number)
    if number <= binding.received:
        raise ProtocolError("event number does not increase", event_number=number, last=binding.received)
    if size > APPEND_MAX_BYTES:
        raise ProtocolError("append is too large", size_bytes=size, limit_bytes=APPEND_MAX_BYTES)
