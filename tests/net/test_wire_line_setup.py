"""A line that is set up anew: what was in flight is decided, and nothing behind it waits forever."""

import asyncio
from uuid import UUID

import pytest

from penstock.codec.wire.commands import SegmentIsSealed
from penstock.model.errors import NotConnectedError, SegmentSealedError
from penstock.net.dial.wire_append_pool import append_to
from penstock.net.dial.wire_dial import DialLimits
from penstock.net.dial.wire_lines import AppendConnection, Line
from penstock.ports.data.segments import NO_EVENT, Append


class SilentStore:
    """The client's end of a connection whose store answers nothing."""

    def __init__(self):
        self.limits = DialLimits()
        self.is_open = self.writable = True
        self.on_writable = None
        self.sent = []
        self._rid = 0

    def attach(self, sink, rid=None):
        self._rid += 1
        return self._rid

    def detach(self, rid):
        pass

    def flush(self):
        pass

    def send_parts(self, parts):
        self.sent.append(b"".join(bytes(part) for part in parts))


def append(number, previous, *, expected=None):
    return Append(
        segment="s",
        writer=UUID(int=1),
        data=b"data",
        event_number=number,
        previous=previous,
        expected_offset=expected,
    )


@pytest.mark.parametrize("expected", [None, 0])
def test_what_the_store_dropped_at_a_setup_fails_and_the_line_goes_on(expected):
    async def scenario():
        store = SilentStore()
        connection = AppendConnection(store)
        line = Line("s", UUID(int=1), lambda line: None)
        line.opened(connection, NO_EVENT)
        dropped = append_to(line, append(1, NO_EVENT, expected=expected))
        assert len(store.sent) == 1
        # The caller has given up, and asks what is stored. The store answers what it holds first: nothing.
        line.hold()
        again = append_to(line, append(1, NO_EVENT))
        assert len(store.sent) == 1, "nothing is sent before the setup is answered"
        line.opened(connection, NO_EVENT)
        with pytest.raises(NotConnectedError):
            await asyncio.wait_for(dropped, 5)
        assert len(store.sent) == 2
        assert not again.done()

    asyncio.run(scenario())


def test_a_refusal_says_nothing_of_appends_before_the_refused_one():
    async def scenario():
        store = SilentStore()
        connection = AppendConnection(store)
        line = Line("s", UUID(int=1), lambda line: None)
        line.opened(connection, NO_EVENT, handle=1)
        other = Line("t", UUID(int=2), lambda line: None)
        other.opened(connection, NO_EVENT, handle=2)
        append_to(other, append(1, NO_EVENT))
        gathered = append_to(line, append(1, NO_EVENT))  # Its frame is answered when all others in it are decided.
        connection.send_gathered()
        line.handle = None  # What follows travels by itself, as a large append does.
        alone, behind = append_to(line, append(2, 1)), append_to(line, append(3, 2))
        assert [request.event_number for request in line._alone_in_flight()] == [2, 3]
        line(SegmentIsSealed(1, "s", "", 2))
        with pytest.raises(NotConnectedError):
            await gathered
        for refused in (alone, behind):
            with pytest.raises(SegmentSealedError):
                await refused

    asyncio.run(scenario())


def test_room_for_one_append_asks_one_line_in_the_order_of_asking():
    class Waiting:
        """Sends one append of ten bytes whenever it is asked, as long as there is room."""

        def __init__(self, connection, number, asked):
            self.connection, self.number, self.asked = connection, number, asked

        def pump(self):
            self.asked.append(self.number)
            if self.connection.has_room:
                self.connection.sent(10)
            self.connection.starve(self)

    async def scenario():
        connection = AppendConnection(SilentStore())
        asked = []
        lines = [Waiting(connection, number, asked) for number in range(100)]
        connection.sent(DialLimits().window_bytes)
        for line in lines:
            connection.starve(line)
        for _ in range(150):
            connection.answered(10)
        assert asked == [*range(100), *range(50)]

    asyncio.run(scenario())
