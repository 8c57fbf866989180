"""PDP-19, retention: each rule, call and example by its place in the proposal."""

from __future__ import annotations

import asyncio

import pytest
from documents_world import DAY_S, FIRST, STREAM, WRITER, World, by_size, by_time, play, play_lives, take

from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidCutError,
    SegmentNotFoundError,
    SegmentSealedError,
    TruncatedError,
)
from penstock.model.names import segment_name, transaction_segment_name
from penstock.ports.data.segments import NO_EVENT, Append

ABC = "s/abc/0.#epoch.0"
NAME = segment_name(STREAM, FIRST)
ROLLING = {"chunk_bytes": 100, "flush_bytes": 50, "free_head_bytes": 10}


async def put(w: World, name: str, *sizes: int, fill: bytes = b"x") -> None:
    """Append so many bytes one after the other, and bring them to tier 2."""
    for size in sizes:
        last = await w.segments.setup_append(name, WRITER)
        number = 1 if last == NO_EVENT else last + 1
        await w.segments.append(
            Append(segment=name, writer=WRITER, data=fill * size, event_number=number, previous=last)
        )
    await w.segments.flush()


async def content(w: World, name: str, start: int = 0) -> bytes:
    data, end = b"", (await w.segments.info(name)).length
    while start + len(data) < end:
        found = await w.segments.read(name, start + len(data), 1 << 20, wait=False)
        data += b"".join(bytes(part) for part in found.parts)
    return data


async def chunks(w: World, name: str) -> list[tuple[int, int]]:
    found = await w.segments.chunk_ranges(name, 0, 1 << 40)
    return [(item.start_offset, item.end_offset) for item in found]


def on_disk(w: World) -> list[str]:
    """Names of the data files in tier 2."""
    return [name for name in sorted(w.disks.chunks._chunks) if not name.endswith(".idx")]


# --- client -------------------------------------------------------------------------------------------------------


def test_a_cut_is_had_from_a_reader_group_and_a_stream_trimmed_at_it() -> None:
    """Client API changes: getStreamCut gives a cut that agrees with how far all readers are, trimStream truncates at it."""

    async def story(w: World) -> None:
        stream = await w.stream(segments=2)
        reading = await w.store.reader_group("g", ["s/t"])
        await w.append(10, 10, segment=FIRST)
        await w.append(10, 10, segment=FIRST + 1)
        async with reading.reader("one") as one, reading.reader("two") as two:
            await asyncio.sleep(5)
            await take(one, 2)
            await take(two, 1)
        (cut,) = (await reading.checkpoint()).values()
        assert sorted(cut.positions.values()) == [10, 20]
        await stream.truncate(cut)
        assert await stream.head() == cut

    play(story)


def test_the_controller_makes_a_cut_for_those_who_only_write() -> None:
    """Client API changes: for writers the controller could put a cut together."""

    async def story(w: World) -> None:
        stream = await w.stream(segments=2)
        async with stream.writer() as writer:
            for number in range(10):
                await writer.write(f"{number}", f"k{number}")
            await writer.flush()
            cut = await stream.tail()
        assert sum(cut.positions.values()) == 10 * 9

    play(story)


def test_an_application_maps_its_own_time_to_cuts() -> None:
    """Client API changes: cuts taken from time to time let an application trim by its own notion of time; it keeps them
    itself."""

    async def story(w: World) -> None:
        stream = await w.stream()
        days = {}
        for day in ("monday", "tuesday", "wednesday"):
            days[day] = (await stream.tail()).to_text()
            await w.append(10, 10)
        await stream.truncate(days["wednesday"])
        assert await w.head() == {FIRST: 40}
        with pytest.raises(InvalidCutError):
            await stream.truncate(days["monday"])

    play(story)


@pytest.mark.parametrize(("policy", "unit"), [(by_size(10, 20), "bytes"), (by_time(1, 2), "ms")])
def test_the_policy_of_a_stream_is_of_size_or_age(policy, unit: str) -> None:
    """Client API changes: a stream is configured to be retained by size in bytes or by age."""

    async def story(w: World) -> None:
        stream = await w.stream(policy)
        assert (await stream.config()).retention == policy
        assert policy.unit == unit

    play(story)


# --- controller ---------------------------------------------------------------------------------------------------


def test_segments_within_the_cut_go_and_those_in_it_are_truncated() -> None:
    """Controller changes: segments wholly before the cut are eliminated, those that are part of it truncated."""

    async def story(w: World) -> None:
        stream = await w.stream()
        await w.append(10, 10)
        await stream.scale(2)
        left, right = (item.segment for item in await w.controller.layout.current(STREAM))
        await w.append(10, 10, segment=left)
        await stream.truncate(StreamCut(STREAM, {left: 10, right: 0}))
        with pytest.raises(SegmentNotFoundError):
            await w.segments.info(NAME)
        assert (await w.segments.info(segment_name(STREAM, left))).start_offset == 10
        assert (await w.segments.info(segment_name(STREAM, right))).start_offset == 0

    play(story)


def test_a_truncation_that_has_begun_is_completed() -> None:
    """Controller changes: once begun, a truncation completes, whatever happens meanwhile."""

    async def story(w: World) -> None:
        stream = await w.stream()
        await w.append(10, 10)
        await stream.scale(2)
        cut = await stream.tail()
        real, calls = w.segments.delete, []

        async def stuck(name: str) -> None:
            calls.append(name)
            await asyncio.Event().wait()

        w.segments.delete = stuck  # type: ignore[method-assign]
        truncating = asyncio.ensure_future(stream.truncate(cut))
        while not calls:
            await asyncio.sleep(0.1)
        w.segments.delete = real  # type: ignore[method-assign]
        truncating.cancel()

    play_lives(story, _completed)


async def _completed(w: World) -> None:
    await w.controller.sweep()
    assert sorted((await w.head()).values()) == [0, 0]
    with pytest.raises(SegmentNotFoundError):
        await w.segments.info(NAME)


def test_truncation_is_idempotent() -> None:
    """Controller changes: calls to truncate are idempotent."""

    async def story(w: World) -> None:
        stream = await w.stream()
        await w.append(10, 10)
        middle = StreamCut(STREAM, {FIRST: 10})
        for _ in range(3):
            await stream.truncate(middle)
            assert await stream.head() == middle

    play(story)


def test_two_days_of_age() -> None:
    """Controller changes, age: a stream of two days; the proposal truncates every two days at the cut before.
    Differs: age, how often a stream is truncated"""

    async def story(w: World) -> None:
        await w.stream(by_time(2 * DAY_S))
        oldest = []
        for hour in range(24 * 5):
            await w.append(10)
            await w.cycle(after_s=3600)
            oldest.append(hour + 1 - (await w.head())[FIRST] // 10)
        # By the proposal between two and four days are kept; here two days, and what came since the last cycle.
        assert oldest == [*range(1, 48), *[48] * (24 * 5 - 47)]

    play(story, days=6)


def test_size_takes_the_closest_cut_above_the_threshold() -> None:
    """Controller changes, size: once a stream overflows it is truncated at the closest cut above the threshold, the lowest
    upper bound; that is an approximation."""

    async def story(w: World) -> None:
        await w.stream(by_size(50))
        for _ in range(20):
            await w.grow(7, 9, 13)
            assert await w.size() < 50 + 13
        assert await w.size() >= 50

    play(story)


# --- REST ---------------------------------------------------------------------------------------------------------


def test_rest_call_to_trim() -> None:
    """REST API changes: there is a REST call for trimStream."""

    async def story(w: World) -> None:
        await w.stream()
        await w.append(10, 10)
        text = StreamCut(STREAM, {FIRST: 10}).to_text()
        answer = await w.ok("POST", "/v1/scopes/s/streams/t/truncate", {"cut": text})
        assert answer["positions"] == {"0#0": 10}
        assert await w.head() == {FIRST: 10}

    play(story)


# --- segment store ------------------------------------------------------------------------------------------------


def test_a_segment_tells_its_length_and_whether_it_is_sealed() -> None:
    """Segment store changes: the segment info has the length and whether the segment is sealed."""

    async def story(w: World) -> None:
        await w.segments.create_segment(ABC)
        await put(w, ABC, 249)
        found = await w.segments.info(ABC)
        assert (found.length, found.sealed, found.start_offset) == (249, False, 0)
        assert await w.segments.seal(ABC) == 249
        assert (await w.segments.info(ABC)).sealed

    play(story)


def test_many_segments_are_asked_for_at_once() -> None:
    """Segment store changes: bulk calls for infos and deletions save trips over the network.
    Differs: bulk calls"""

    async def story(w: World) -> None:
        names = [f"s/abc/{number}.#epoch.0" for number in range(3)]
        for name in names:
            await w.segments.create_segment(name)
            await put(w, name, 100)
        spaces = await w.segments.spaces([*names, "s/none/0.#epoch.0"])
        assert {name: item.live_bytes for name, item in spaces.items()} == dict.fromkeys(names, 100)

    play(story)


# --- tier 2 -------------------------------------------------------------------------------------------------------


def test_segment_abc_of_249_bytes_rolled_at_100() -> None:
    """File layout, example: segment abc of 249 bytes, rolled at 100, is offsets 0 to 99, 100 to 199 and 200 to 249 in files of
    their own.
    Differs: files of a segment"""

    async def story(w: World) -> None:
        await w.segments.create_segment(ABC)
        await put(w, ABC, *[50] * 4, 49)
        assert await chunks(w, ABC) == [(0, 100), (100, 200), (200, 249)]
        names = on_disk(w)
        assert [int(name.rpartition("-")[2], 16) for name in names] == [0, 100, 200]
        assert not any("abc" in name for name in names)
        assert [len(w.disks.chunks._chunks[name].data) for name in names] == [100, 100, 49]

    play(story, **ROLLING)


def test_a_segment_may_have_a_rolling_policy_of_its_own() -> None:
    """Segment Store Managed: segments are rolled by size, by a policy for all or one for each segment."""

    async def story(w: World) -> None:
        other = "s/other/0.#epoch.0"
        await w.segments.create_segment(ABC)
        await w.segments.create_segment(other, rollover_bytes=50)
        for name in (ABC, other):
            await put(w, name, *[50] * 4)
        assert await chunks(w, ABC) == [(0, 100), (100, 200)]
        assert await chunks(w, other) == [(0, 50), (50, 100), (100, 150), (150, 200)]

    play(story, **ROLLING)


def test_operation_create() -> None:
    """Operation, create: fails if the segment is there; otherwise begins without data, whatever an earlier one left."""

    async def story(w: World) -> None:
        await w.segments.create_segment(ABC)
        await put(w, ABC, 50)
        with pytest.raises(AlreadyExistsError):
            await w.segments.create_segment(ABC)
        await w.segments.delete(ABC)
        await w.segments.create_segment(ABC)
        assert ((await w.segments.info(ABC)).length, await chunks(w, ABC)) == (0, [])

    play(story, **ROLLING)


def test_operation_delete() -> None:
    """Operation, delete: removes the data files, and then what names them."""

    async def story(w: World) -> None:
        await w.segments.create_segment(ABC)
        await put(w, ABC, *[50] * 5)
        assert len(on_disk(w)) == 3
        await w.segments.delete(ABC)
        await w.segments.flush()
        assert on_disk(w) == []
        with pytest.raises(SegmentNotFoundError):
            await w.segments.info(ABC)

    play(story, **ROLLING)


def test_operation_write_goes_to_the_last_file_until_it_is_full() -> None:
    """Operation, write: goes to the active file; beyond the limit the next one is begun."""

    async def story(w: World) -> None:
        await w.segments.create_segment(ABC)
        seen = []
        for _ in range(5):
            await put(w, ABC, 50)
            seen.append(await chunks(w, ABC))
        assert [len(item) for item in seen] == [1, 1, 2, 2, 3]
        # Full files are not touched again.
        assert all(later[: len(sooner) - 1] == sooner[:-1] for sooner, later in zip(seen, seen[1:], strict=False))

    play(story, **ROLLING)


def test_operation_concat_copies_nothing() -> None:
    """Operation, concat: the files of the source become files of the target at adjusted offsets; none is renamed or copied."""

    async def story(w: World) -> None:
        source = transaction_segment_name(ABC, WRITER)
        await w.segments.create_segment(ABC)
        await w.segments.create_segment(source)
        await put(w, ABC, 50, fill=b"a")
        await put(w, source, *[50] * 5, fill=b"b")
        before = on_disk(w)
        assert await w.segments.merge(ABC, source) == 300
        await w.segments.flush()
        assert on_disk(w) == before
        assert await chunks(w, ABC) == [(0, 50), (50, 150), (150, 250), (250, 300)]
        assert await content(w, ABC) == b"a" * 50 + b"b" * 250
        with pytest.raises(SegmentNotFoundError):
            await w.segments.info(source)
        assert await w.segments.merge(ABC, source) == 300  # Called twice, done once.

    play(story, **ROLLING)


def test_operation_read_finds_the_files() -> None:
    """Operation, read: finds the data files of the bytes asked for, also those that came after the segment was first looked
    at."""

    async def story(w: World) -> None:
        await w.segments.create_segment(ABC)
        await put(w, ABC, 50, fill=b"a")
        assert await content(w, ABC) == b"a" * 50
        for fill in (b"b", b"c", b"d"):
            await put(w, ABC, 50, fill=fill)
        assert await content(w, ABC, 25) == b"a" * 25 + b"b" * 50 + b"c" * 50 + b"d" * 50

    play(story, **ROLLING)


def test_operation_seal() -> None:
    """Operation, seal: seals the segment and its active file."""

    async def story(w: World) -> None:
        await w.segments.create_segment(ABC)
        await put(w, ABC, 50, 50, 49)
        await w.segments.seal(ABC)
        with pytest.raises(SegmentSealedError):
            await put(w, ABC, 50)
        assert await content(w, ABC) == b"x" * 149

    play(story, **ROLLING)


@pytest.mark.parametrize(
    ("offset", "files", "freed"),
    [(50, 3, 50), (99, 3, 50), (100, 2, 100), (149, 2, 100), (150, 2, 150), (200, 1, 200), (249, 0, 249)],
)
def test_operation_truncate(offset: int, files: int, freed: int) -> None:
    """Operation, truncate: deletes the data files that lie before the offset.
    Differs: head of a file"""

    async def story(w: World) -> None:
        await w.segments.create_segment(ABC)
        await put(w, ABC, *[50] * 4, 49)
        await w.segments.truncate(ABC, offset)
        await w.segments.flush()
        assert len(on_disk(w)) == files
        space = (await w.segments.spaces([ABC]))[ABC]
        assert (space.freed_bytes, space.pending_free_bytes) == (freed, offset - freed)
        assert await content(w, ABC, offset) == b"x" * (249 - offset)
        for wrong in (250, 1000):
            with pytest.raises(InvalidArgumentError):
                await w.segments.truncate(ABC, wrong)

    play(story, **ROLLING)


# --- open questions -----------------------------------------------------------------------------------------------


def test_open_segments_are_truncated_too() -> None:
    """Open questions, 1: not only sealed segments are truncated, but open ones."""

    async def story(w: World) -> None:
        stream = await w.stream()
        await w.append(10, 10)
        await stream.truncate(StreamCut(STREAM, {FIRST: 10}))
        found = await w.segments.info(NAME)
        assert (found.start_offset, found.sealed) == (10, False)
        await w.append(10)
        assert await w.size() == 20

    play(story)


def test_truncated_data_is_out_of_reach_at_once_and_off_the_disk_soon_after() -> None:
    """Open questions, 2: once truncated, data cannot be read; it may stay in tier 1 until the log is truncated too."""

    async def story(w: World) -> None:
        await w.segments.create_segment(ABC)
        await put(w, ABC, 50, fill=b"secret")
        await w.segments.truncate(ABC, 300)
        with pytest.raises(TruncatedError):
            await w.segments.read(ABC, 0, 100)
        await w.segments.flush()
        assert on_disk(w) == []
        for _ in range(3):  # The log ends with later writes, as far as all of them are tiered and described.
            await put(w, ABC, 50, fill=b"other-")
        assert not any(b"secret" in frame for _, frame in w.disks.log_state.frames)

    play(story, **ROLLING)
