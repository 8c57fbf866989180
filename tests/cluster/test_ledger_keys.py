"""Secrets of ledgers in tier 2: their laws, what an opening does without them, and what a wipe must not destroy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from penstock.codec.store.ledger_cipher import LedgerCipher, sealed_parts
from penstock.codec.store.ledger_keys import DIRECTORY, decode_key_object, encode_marker, encode_secret
from penstock.core.cluster.ownership import CLOCK_SLACK_MS
from penstock.model.errors import (
    AlreadyExistsError,
    ContainerOfflineError,
    CorruptDataError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from penstock.model.ledgers import LedgerKey
from penstock.ports.durable_log import LogAddress
from penstock.storage.ledgers import beginnings, keyring
from penstock.storage.ledgers.ledger_log import LedgerLog
from penstock.storage.ledgers.wiping import Wiping
from penstock.storage.machine.files import RealFiles
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.storage.objects.file_objects import FileObjects
from penstock.storage.objects.ledger_keys import MARKER_MS, ObjectLedgerKeys
from penstock.testing import FakeClock, InlineOffload
from penstock.testing.bookkeeper.bookies import SimBookKeeper
from penstock.testing.conformance.durable_log import replayed
from tests.cluster.ledger_log_kit import (
    CLOCK,
    FRAMES,
    append_all,
    content,
    open_log,
    record_of,
    run,
    tier_of,
)
from tests.cluster.planted_kit import finds
from tests.cluster.virtual_time import run_virtually

SECRET = bytes(range(32))


def key(number: int, *, epoch: int = 1) -> LedgerKey:
    return LedgerKey(epoch=epoch, id=number.to_bytes(16, "big"))


def name(of: LedgerKey) -> str:
    return f"{DIRECTORY}/u/{of}"


class World:
    """The keys of the log ``u`` in some storage."""

    def __init__(self, objects: MemoryObjects | FileObjects, *, late_s: float = 300.0) -> None:
        self.objects = objects
        self.clock = FakeClock()
        self.keys = ObjectLedgerKeys(objects, uid="u", clock=self.clock, late_s=late_s)


@pytest.fixture(params=["memory", "files"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    is_memory = request.param == "memory"
    return World(MemoryObjects() if is_memory else FileObjects(RealFiles(tmp_path, InlineOffload())))


def test_a_secret_is_read_until_it_is_destroyed(world: World) -> None:
    async def main() -> None:
        await world.keys.write(key(1), SECRET)
        later = ObjectLedgerKeys(world.objects, uid="u", clock=world.clock)
        assert await later.read(key(1)) == SECRET
        with pytest.raises(NotFoundError, match="missing"):
            await later.read(key(2))
        with pytest.raises(UnavailableError, match="taken"):
            await later.write(key(1), bytes(32))
        await later.destroy([key(1), key(2)])
        await later.destroy([key(1)])
        with pytest.raises(NotFoundError, match="destroyed"):
            await world.keys.read(key(1))
        assert list(await world.objects.list(DIRECTORY)) == [name(key(1))], "its name stays taken"

    run_virtually(main())


def test_all_others_up_to_the_epoch_are_destroyed_whatever_their_bytes_are(world: World) -> None:
    async def main() -> None:
        for number in range(4):
            await world.keys.write(key(number), SECRET)
        await world.keys.write(key(9, epoch=2), SECRET)
        await world.objects.put(name(key(5)), SECRET[:20])  # the writer of this one has crashed
        await world.objects.put(f"{DIRECTORY}/other/{key(1)}", encode_secret(SECRET))
        found = await world.keys.destroy_others([key(2)], epoch=1)
        assert found is not None
        assert found.keys == tuple(str(key(number)) for number in (0, 1, 3, 5))
        assert found.at_ms == world.clock.now_ms()
        for kept in (key(2), key(9, epoch=2)):
            assert await world.keys.read(kept) == SECRET
        for place in await world.objects.list(f"{DIRECTORY}/u"):
            data = await world.objects.read(place, 0, 100)
            assert (SECRET[:20] in data) == (place in (name(key(2)), name(key(9, epoch=2))))
        assert await world.objects.read(f"{DIRECTORY}/other/{key(1)}", 0, 100) == encode_secret(SECRET)
        assert await world.keys.destroy_others([key(2)], epoch=1) == found, "a repeat returns the same"

    run_virtually(main())


def test_markers_are_forgotten_after_a_day(world: World) -> None:
    async def main() -> None:
        for number in (1, 2):
            await world.keys.write(key(number), SECRET)
        await world.keys.destroy([key(1)])
        await world.keys.forget_markers()
        world.clock.ms += MARKER_MS + 1
        assert len(await world.objects.list(DIRECTORY)) == 2
        await world.keys.forget_markers()
        assert list(await world.objects.list(DIRECTORY)) == [name(key(2))]
        assert await world.keys.read(key(2)) == SECRET

    run_virtually(main())


class Unconditional(MemoryObjects):
    """A storage that ignores the condition of a creation."""

    async def create(self, name: str, data: bytes) -> None:
        await self.put(name, data)


def test_without_conditional_writes_a_wipe_waits_for_late_requests() -> None:
    async def main() -> None:
        world = World(Unconditional(), late_s=5.0)
        await world.keys.write(key(1), SECRET)
        await world.keys.write(key(2), SECRET)
        assert await world.keys.destroy_others([key(2)], epoch=1) is None
        await world.objects.put(name(key(1)), encode_secret(SECRET))  # the first attempt of the write, late
        world.clock.ms += 5001
        assert await world.keys.destroy_others([key(2)], epoch=1) is None
        world.clock.ms += 5001
        assert await world.keys.destroy_others([key(2)], epoch=1) is not None
        assert SECRET not in await world.objects.read(name(key(1)), 0, 100)

    run_virtually(main())


class Versioned(MemoryObjects):
    """A bucket that keeps what is overwritten: ``kept``."""

    def __init__(self) -> None:
        super().__init__()
        self.is_on = True
        self.kept: dict[str, list[bytes]] = {}

    async def overwrite(self, name: str, data: bytes) -> None:
        if self.is_on or name in self.kept:
            self.kept.setdefault(name, []).append(self._find(name))
        await super().overwrite(name, data)

    async def keeps_versions(self, name: str) -> bool:
        await super().keeps_versions(name)
        return self.is_on or name in self.kept


def check_versions() -> None:
    async def main() -> None:
        objects = Versioned()
        world = World(objects)
        await world.keys.write(key(1), SECRET)
        for refused in (
            world.keys.check(key(1)),
            world.keys.destroy([key(1)]),
            world.keys.destroy_others([], epoch=1),
        ):
            with suppress(UnsupportedError):  # what matters is that no version came to be
                await refused
        assert not objects.kept, "a version of a secret is kept"

    run_virtually(main())


def test_a_bucket_that_keeps_versions_is_refused_and_gets_none() -> None:
    check_versions()

    async def main() -> None:
        world = World(Versioned())
        await world.keys.write(key(1), SECRET)
        with pytest.raises(UnsupportedError, match="Switch versioning off"):
            await world.keys.check(key(1))
        with pytest.raises(UnsupportedError, match="Switch versioning off"):
            await world.keys.destroy_others([], epoch=1)

    run_virtually(main())


def test_a_planted_kept_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse_nothing(self: ObjectLedgerKeys, name: str) -> None:
        return

    monkeypatch.setattr(ObjectLedgerKeys, "_refuse_versions", refuse_nothing)
    finds(check_versions, "a version of a secret is kept")


# --- the log


def test_frames_are_on_no_bookie_in_clear_and_entries_are_encrypted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check_nonces(monkeypatch)


def check_nonces(monkeypatch: pytest.MonkeyPatch) -> None:
    seal, used = LedgerCipher.seal, dict[tuple[int, int], bytes]()

    def noting(self: LedgerCipher, entry: int, head: bytes, data: Any) -> bytes:
        before = used.setdefault((self._ledger, entry), head + data)
        assert before == head + data, "a nonce was used for two texts"
        return seal(self, entry, head, data)

    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            first = asyncio.ensure_future(append_all(log, FRAMES[:30]))
            await asyncio.sleep(0.001)
            world.bookies["bookie-1"].stop()
            await first
            await append_all(log, FRAMES[30:])
        stored = [
            data
            for bookie in world.bookies.values()
            for ledger in bookie.memory.values()
            for data in ledger.entries.values()
        ]
        assert len(record_of(world).ledgers) > 1, "the log has rolled"
        assert not any(frame[:200] in data for frame in FRAMES for data in stored)
        assert await content(world, seed=2) == FRAMES

    with monkeypatch.context() as patched:
        patched.setattr(LedgerCipher, "seal", noting)
        run(scenario)


def test_a_planted_reused_nonce_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def sealed(cipher: LedgerCipher, entry: int, address: int, frame: bytes, **limits: int) -> Any:
        cipher._sealed = 0  # each frame begins at the first number again
        return sealed_parts(cipher, 1, address, frame, **limits)

    monkeypatch.setattr(beginnings, "sealed_parts", sealed)
    finds(lambda: check_nonces(monkeypatch), "a nonce was used for two texts")


def keys_of(world: SimBookKeeper) -> dict[str, bytes]:
    return {name: data for name, data in tier_of(world)._objects.items() if name.startswith(DIRECTORY)}


def secrets_of(world: SimBookKeeper) -> list[str]:
    return [name for name, data in keys_of(world).items() if isinstance(decode_key_object(data, name=name), bytes)]


def test_a_key_that_is_missing_or_damaged_stops_the_opening_and_names_object_and_ledger() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            await log.append([b"kept"])
            ledger = record_of(world).ledgers[-1].ledger
            place = name_of_current(world, log)
        objects = tier_of(world)._objects
        saved = objects[place]
        for damage in (None, saved[:20], saved[:10] + b"x" + saved[11:], encode_secret(bytes(32)), encode_marker(1)):
            objects.pop(place, None)
            if damage is not None:
                objects[place] = damage
            with pytest.raises(CorruptDataError) as found:
                await content(world, seed=2)
            assert found.value.fields["ledger"] == ledger
            assert place in str(found.value) or place.rpartition("/")[2] in str(found.value)
        objects[place] = saved
        assert await content(world, seed=3) == [b"kept"]

    run(scenario)


def name_of_current(world: SimBookKeeper, log: LedgerLog) -> str:
    assert log._current is not None
    assert log._current.cipher is not None
    return f"{DIRECTORY}/{log.uid}/{log._current.cipher.key}"


def test_an_opening_waits_for_tier_2_and_can_be_repeated() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            await log.append([b"kept"])
        with tier_away(world), pytest.raises(UnavailableError):
            await content(world, seed=2)
        assert await content(world, seed=3) == [b"kept"]

    run(scenario)


@contextmanager
def tier_away(world: SimBookKeeper) -> Iterator[None]:
    async def refuse(verb: str, name: str) -> None:
        raise UnavailableError("tier 2 does not answer")

    tier_of(world)._before = refuse
    yield
    tier_of(world)._before = None


def test_one_roll_needs_no_tier_2_and_then_the_ledger_continues_beyond_its_size() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            await log.append([b"first"])
            await asyncio.sleep(1)
            with tier_away(world):
                before = record_of(world).ledgers
                assert await append_all(log, FRAMES) == list(range(2, 62))
                assert await append_all(log, FRAMES) == list(range(62, 122))
                await asyncio.sleep(1)
                assert len(record_of(world).ledgers) == len(before) + 1
                assert all(one.sealed for one in record_of(world).ledgers), "never without encryption"
            await asyncio.sleep(60)
            assert await append_all(log, FRAMES) == list(range(122, 182))
            await asyncio.sleep(1)
            assert len(record_of(world).ledgers) > len(before) + 1
        assert await content(world, seed=2) == [b"first", *FRAMES * 3]

    run(scenario)


def test_keys_of_deleted_ledgers_are_destroyed_without_a_wipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "_FORGET_S", 10.0)

    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            for frame in FRAMES:
                last = await log.append([frame])
            await asyncio.sleep(5)
            assert len(secrets_of(world)) > 3
            await log.truncate(last)
            await asyncio.sleep(5)
            assert len(secrets_of(world)) == 2, "that of the current ledger, and the reserve"
            CLOCK.ms += MARKER_MS + 1
            await asyncio.sleep(11)
            await log.truncate(await append_some(log))
            await asyncio.sleep(5)
            assert len(keys_of(world)) < 8, "old markers are deleted"

    run(scenario)


async def append_some(log: LedgerLog) -> LogAddress:
    return LogAddress((await append_all(log, FRAMES))[-1])


async def wipe(log: LedgerLog) -> list[str]:
    """Wipe everything. Returns the keys that were destroyed."""
    upto = await log.begin_wipe()
    await log.truncate(upto)
    found = await log.end_wipe()
    assert found is not None
    return list(found.keys)


def test_a_wipe_destroys_keys_of_earlier_owners_and_of_failed_creations() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            await log.append([b"old"])
            orphan = f"{DIRECTORY}/{log.uid}/{key(77)}"
            await tier_of(world).create(orphan, encode_secret(SECRET))
        before = secrets_of(world)
        async with open_log(world, seed=2) as log:
            await replayed(log)
            await asyncio.sleep(1)
            destroyed = await wipe(log)
            assert {one.rpartition("/")[2] for one in before} <= set(destroyed)
            await asyncio.sleep(1)
            assert len(secrets_of(world)) == 2
            await log.append([b"new"])
        assert await content(world, seed=3) == [b"new"]

    run(scenario)


def check_deposed_wipe() -> None:
    """An owner is deposed between the change of its record and the destruction of keys."""

    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as old:
            await replayed(old)
            await old.append([b"old"])
            await old.truncate(await old.begin_wipe())
            async with open_log(world, seed=2) as new:
                await replayed(new)
                await new.append([b"new"])
                await asyncio.sleep(1)
                assert await old.end_wipe() is not None
        assert await content(world, seed=3) == [b"new"]

    run(scenario)


def test_a_deposed_owner_destroys_no_key_of_its_successor() -> None:
    check_deposed_wipe()


def test_a_planted_destruction_of_later_epochs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ObjectLedgerKeys._others

    async def others(self: ObjectLedgerKeys, kept: Any, epoch: Any) -> list[str]:
        return await original(self, kept, None)

    monkeypatch.setattr(ObjectLedgerKeys, "_others", others)
    with pytest.raises(CorruptDataError, match="key of a ledger is missing"):
        check_deposed_wipe()


def check_wipe_beside_a_roll() -> None:
    """A roll has begun a ledger that the record does not name yet, because the coordinator does not answer."""

    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            await log.append([b"old"])
            await log.truncate(await log.begin_wipe())
            change = log._held.change
            waiting, go_on = asyncio.Event(), asyncio.Event()

            async def slow(changed: Any) -> None:
                waiting.set()
                await go_on.wait()
                await change(changed)

            with patch.object(log._held, "change", slow):
                log._start_roll()
                await waiting.wait()
                assert await log.end_wipe() is not None
                go_on.set()
                await asyncio.sleep(1)
            await log.append([b"new"])
        assert await content(world, seed=2) == [b"new"]

    run(scenario)


def test_a_wipe_keeps_the_key_of_the_ledger_that_a_roll_begins() -> None:
    check_wipe_beside_a_roll()


def test_a_planted_wipe_that_forgets_the_next_ledger_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Wiping.end

    async def end(self: Wiping, begun: Any) -> Any:
        return await original(self, list)

    monkeypatch.setattr(Wiping, "end", end)
    with pytest.raises(CorruptDataError, match="key of a ledger is missing"):
        check_wipe_beside_a_roll()


@pytest.mark.parametrize("verb", ["delete a ledger", "overwrite"])
def test_a_wipe_keeps_the_key_of_a_ledger_that_is_begun_while_it_waits(verb: str) -> None:
    """The wipe waits for the coordinator, or until keys are destroyed that a truncation has released."""

    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            await log.append([b"old"])
            await asyncio.sleep(1)
            upto = await log.begin_wipe()
            await log.append([b"new"])
            await asyncio.sleep(1)  # the reserve is written
            go_on, delete = asyncio.Event(), log._removals._ledgers.delete

            async def slow(done: str, name: str) -> None:
                if done == verb:
                    await go_on.wait()

            async def slow_delete(ledger: int) -> None:
                await slow("delete a ledger", "")
                await delete(ledger)

            tier_of(world)._before = slow
            with patch.object(log._removals._ledgers, "delete", slow_delete):
                truncating = asyncio.ensure_future(log.truncate(upto))
                await asyncio.sleep(1)
                wiping = asyncio.ensure_future(log.end_wipe())
                await asyncio.sleep(1)
                log._start_roll()
                await asyncio.sleep(1)
                await log.append([b"newer"]) if verb == "overwrite" else None
                assert not wiping.done()
                go_on.set()
                await truncating
                assert await wiping is not None
            await asyncio.sleep(1)
            await log.append([b"newest"])
        expected = [b"new", b"newer", b"newest"] if verb == "overwrite" else [b"new", b"newest"]
        assert await content(world, seed=2) == expected

    run(scenario)


def test_a_key_that_is_released_during_a_wipe_is_destroyed_too() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            await log.append([b"old"])
            await asyncio.sleep(1)
            await log.truncate(await log.begin_wipe())
            await log.append([b"new"])
            await asyncio.sleep(5)
            orphan = f"{DIRECTORY}/{log.uid}/{key(77)}"
            await tier_of(world).create(orphan, encode_secret(SECRET))
            go_on = asyncio.Event()

            async def slow(verb: str, name: str) -> None:
                if verb == "overwrite" and name == orphan:
                    await go_on.wait()

            tier_of(world)._before = slow
            wiping = asyncio.ensure_future(log.end_wipe())
            await asyncio.sleep(1)
            log._start_roll()
            await asyncio.sleep(1)
            await log.truncate(log.last)
            await log.append([b"newest"])
            await asyncio.sleep(1)
            go_on.set()
            assert await wiping is not None
            await asyncio.sleep(5)
            assert len(secrets_of(world)) == 2, "that of the current ledger, and the reserve"
        assert await content(world, seed=2) == [b"newest"]

    run(scenario)


def test_a_log_that_was_not_encrypted_says_from_when_on_it_can_be_wiped() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world, encrypts=False) as log:
            await replayed(log)
            await log.append([b"plain"])
        async with open_log(world, seed=2) as log:
            assert [frame for _, frame in await replayed(log)] == [b"plain"], "both versions are read"
            await log.append([b"sealed"])
            assert record_of(world).plain_ms is None
            with pytest.raises(UnavailableError, match="before the upgrade"):
                await log.wipes_from_ms()
            CLOCK.ms += 1000
            await log.truncate(LogAddress(1))
            assert await log.wipes_from_ms() == CLOCK.now_ms() + CLOCK_SLACK_MS
            await wipe(log)
        async with open_log(world, seed=3) as log:
            await replayed(log)
            assert await log.wipes_from_ms() == CLOCK.now_ms() + CLOCK_SLACK_MS, "later openings know it"

    run(scenario)


def test_a_log_becomes_encrypted_with_its_next_ledger_once_it_may() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        may = [False]
        async with open_log(world, encrypts=may) as log:
            await replayed(log)
            await append_all(log, FRAMES)
            assert not any(one.sealed for one in record_of(world).ledgers)
            assert not keys_of(world)
            may[0] = True
            await wipe(log)
            assert [one.sealed for one in record_of(world).ledgers] == [True]
            await append_all(log, FRAMES)
        assert await content(world, seed=2) == FRAMES

    run(scenario)


def test_a_wipe_of_a_closed_or_deposed_log_is_refused() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            await log.append([b"x"])
            async with open_log(world, seed=2) as other:
                await replayed(other)
                with pytest.raises(ContainerOfflineError):
                    await log.truncate(log.last)
        for call in (log.wipes_from_ms, log.begin_wipe, log.end_wipe):
            with pytest.raises(ContainerOfflineError):
                await call()

    run(scenario)


def test_a_name_that_is_taken_is_never_used() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        taken: list[str] = []

        async def lose_first(verb: str, name: str) -> None:
            if verb == "create" and not taken:
                taken.append(name)
                raise UnavailableError("the answer was lost")

        tier_of(world)._after = lose_first
        with pytest.raises(UnavailableError):
            await content(world, seed=1)
        assert await content(world, seed=2) == []
        with pytest.raises(AlreadyExistsError):
            await tier_of(world).create(taken[0], b"")

    run(scenario)


def check_close_while_a_directory_hangs() -> None:
    """The cleanup of a write waits for the same directory."""

    async def scenario(world: SimBookKeeper) -> None:
        hangs = [False]

        async def hang(verb: str, name: str) -> None:
            if hangs[0]:
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.Event().wait()

        tier_of(world)._before = hang
        async with open_log(world) as log:
            await replayed(log)
            await append_all(log, FRAMES[:3])
            hangs[0] = True
            log._start_roll()
            await asyncio.sleep(1)
            since_s = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - since_s < 15
        hangs[0] = False
        assert await content(world, seed=2) == FRAMES[:3]

    run(scenario)


def test_a_log_closes_in_bounded_time_while_the_directory_of_its_keys_hangs() -> None:
    check_close_while_a_directory_hangs()


def test_a_planted_close_that_cancels_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def end_once(task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait({task}, timeout=1000)

    monkeypatch.setattr(keyring, "end_task", end_once)
    with pytest.raises(AssertionError):
        check_close_while_a_directory_hangs()
