"""A refused call changes nothing, whatever the stream has gone through and whatever refuses it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from controller_world import GROUP_ID, STREAM, config, cut_at, name_of, scale_to, seg, with_stream
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_segments import MemorySegments

from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.controller.streams import updates as streams
from penstock.model.errors import PenstockError, RetentionHoldError
from penstock.model.names import AUDIT_STREAM, StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.segments import KeyRange
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.testing.fakes import FakeClock

OTHER = StreamName("s", "u")
BEYOND = cut_at({seg(0, 0): 1 << 40})


def group(name: str, *streams: StreamName, generation: int = 0) -> ReaderGroupConfig:
    return ReaderGroupConfig(
        scope="s",
        name=name,
        id=GROUP_ID,
        generation=generation,
        retention=ReaderGroupRetention.MANUAL,
        start_cuts={stream: cut_at({}, stream) for stream in streams},
    )


CALLS: dict[str, Callable[[Controller], Awaitable[object]]] = {
    "delete": lambda c: c.streams.delete(STREAM),
    "seal and delete": lambda c: c.streams.delete(STREAM, seal=True),
    "delete the scope": lambda c: c.scopes.delete("s"),
    "truncate": lambda c: c.streams.truncate(STREAM, cut_at({seg(0, 0): 5})),
    "truncate beyond": lambda c: c.streams.truncate(STREAM, BEYOND),
    "undo": lambda c: c.retention.undo_last(STREAM),
    "scale": lambda c: c.layout.scale(STREAM, sealed=[seg(0, 0)], new_ranges=[KeyRange(low=0.0, high=0.25)]),
    "join two streams": lambda c: c.groups.create(group("new", OTHER, StreamName("s", "absent"))),
    "change to two streams": lambda c: c.groups.update(group("g", OTHER, StreamName("s", "absent"))),
    "an old generation": lambda c: c.groups.update(group("g", OTHER, generation=7)),
    "move a subscriber": lambda c: c.subscribers.move(STREAM, "s/g", BEYOND),
    "remove no subscriber": lambda c: c.subscribers.remove(STREAM, "s/nobody"),
    "hold beyond": lambda c: c.holds.add(STREAM, owner="o", reason="r", cut=BEYOND),
    "make again": lambda c: c.streams.create(STREAM, config(2)),
    "delete the audit": lambda c: c.streams.delete(AUDIT_STREAM, seal=True),
    "delete no group": lambda c: c.groups.delete("s", "nobody"),
}
HOLDS: dict[str, Callable[[Controller], Awaitable[object]]] = {
    "stream": lambda c: c.holds.add(STREAM, owner="legal", reason="case 7"),
    "scope": lambda c: c.holds.add("s", owner="legal", reason="case 7"),
    "cut": lambda c: c.holds.add(STREAM, owner="legal", reason="case 7", cut=cut_at({seg(0, 0): 2})),
}


def rows(segments: MemorySegments) -> dict[bytes, bytes]:
    """Everything that the controller has stored, but for its clock."""
    kept = segments.tables[keys.TABLE].entries
    return {key: value for key, (value, _) in kept.items() if b"clock" not in key}


@settings(max_examples=60, deadline=None)
@given(
    call=st.sampled_from(sorted(CALLS)),
    hold=st.sampled_from([None, *sorted(HOLDS)]),
    subscribed=st.booleans(),
    scaled=st.booleans(),
    open_transaction=st.booleans(),
    sealed=st.booleans(),
)
def test_a_refused_call_changes_nothing(
    call: str, hold: str | None, subscribed: bool, scaled: bool, open_transaction: bool, sealed: bool
) -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1, FakeClock()) as controller:
            await controller.streams.create(OTHER, config(1))
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            if subscribed:
                await controller.groups.create(group("g", STREAM))
            if hold is not None:
                await HOLDS[hold](controller)
            if scaled:
                await scale_to(controller, 2)
            if open_transaction:
                await controller.transactions.create(STREAM, lease_ms=10_000)
            if sealed:
                await controller.streams.seal(STREAM)
            await controller.sweep()
            await controller.drain_audit()
            before, open_before = rows(segments), await controller.layout.current(STREAM)
            try:
                await CALLS[call](controller)
            except PenstockError:
                await controller.sweep()
                assert rows(segments) == before
                assert await controller.layout.current(STREAM) == open_before
            else:
                assert not (hold is not None and call in ("delete", "seal and delete", "delete the scope"))

    asyncio.run(work())


def test_a_hold_that_comes_between_the_look_and_the_step_refuses_sealing_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2, FakeClock()) as controller:
            real, placed = streams.deletion_puts, []

            async def with_a_hold(*words, **named):
                puts = await real(*words, **named)
                if not placed:
                    # Past the stream's lock, as a hold on the scope is.
                    placed.append(asyncio.ensure_future(controller.holds.add("s", owner="legal", reason="case 7")))
                    while not any(key.startswith(b"hold/") for key in segments.tables[keys.TABLE].entries):
                        await asyncio.sleep(0)
                return puts

            monkeypatch.setattr(streams, "deletion_puts", with_a_hold)
            with pytest.raises(RetentionHoldError):
                await controller.streams.delete(STREAM, seal=True)
            await placed[0]
            assert len(await controller.layout.current(STREAM)) == 2

    asyncio.run(work())
