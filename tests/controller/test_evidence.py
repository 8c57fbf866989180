"""What the store signs about its audit log, and what is left of it after crashes."""

import asyncio
import json
from contextlib import suppress

import pytest
from audit_world import SEGMENT, decide
from controller_world import STREAM, config, cut_at, name_of, seg
from evidence_keys import key_files, signing
from memory_segments import MemorySegments

from penstock.client.audit import AsyncAuditLog
from penstock.codec.events import event_bounds
from penstock.controller.settings import DAY_MS
from penstock.core.evidence.verify import verify
from penstock.model.errors import (
    ContainerOfflineError,
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    StorageFullError,
    UnavailableError,
)
from penstock.model.names import StreamName
from penstock.storage.machine.signing_keys import DIRECTORY, FileSigningKeys
from penstock.testing.fakes import FakeClock


async def exported(controller, segments):
    parts = []
    await AsyncAuditLog(segments, controller).export(parts.append)
    return b"".join(parts)


def holds(key, known=None, **files):
    report = verify(files, [key], known=known)
    assert report.holds, report.findings
    return True


def test_checkpoints_exports_and_proofs_hold(tmp_path):
    async def run():
        segments = MemorySegments()
        async with signing(segments, tmp_path) as controller:
            for number in range(300):
                await decide(controller, number)
            key = (await controller.evidence.log()).key
            old = await controller.evidence.checkpoint()
            for number in range(300):
                await decide(controller, number)
            new = await controller.evidence.checkpoint()
            proof = await controller.evidence.consistency(old.size)
            files = {"old": old.note.encode(), "new": new.note.encode()}
            assert holds(key, proof=proof.text.encode(), **files)
            assert holds(key, export=await exported(controller, segments), **files)
            assert [item.size for item in await controller.evidence.checkpoints()] == [old.size, new.size]
            for wrong in (0, new.size + 1000):
                with pytest.raises(InvalidArgumentError):
                    await controller.evidence.consistency(wrong)

    asyncio.run(run())


def test_an_export_begins_where_the_stream_does(tmp_path):
    async def run():
        segments = MemorySegments()
        async with signing(segments, tmp_path) as controller:
            for number in range(700):
                await decide(controller, number)
            old, key = await controller.evidence.checkpoint(), (await controller.evidence.log()).key
            bounds = event_bounds(bytes(segments.segments[SEGMENT].data))
            for wanted in (300, 512, 600):
                await segments.truncate(SEGMENT, bounds[wanted])
                data = await exported(controller, segments)
                assert json.loads(data.split(b"\n")[0])["start"] == wanted
                assert holds(key, export=data, old=old.note.encode())
            # Hashes of entries outlive the entries.
            for number in range(10):
                await decide(controller, number)
            proof = await controller.evidence.consistency(100)
            assert holds(key, proof=proof.text.encode())

    asyncio.run(run())


def test_documents_about_holds_and_removals_hold(tmp_path):
    async def run():
        segments = MemorySegments()
        async with signing(segments, tmp_path) as controller:
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, config())
            segments.write(name_of(seg(0, 0)), b"x" * 50, event_bytes=10)
            await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 30}))
            await controller.holds.add(STREAM, owner="legal", reason="case", until_ms=2 * 10**12, hold_id="h")
            placed = await controller.evidence.hold("h")
            await controller.holds.extend("h", owner="legal", until_ms=3 * 10**12)
            extended = await controller.evidence.hold("h")
            await controller.holds.release("h", owner="judge")
            lifted = await controller.evidence.hold("h")
            key = (await controller.evidence.log()).key
            states = [json.loads(item.text)["statement"]["state"] for item in (placed, extended, lifted)]
            assert states == ["placed", "extended", "lifted"]
            for item in (placed, extended, lifted):
                assert holds(key, hold=item.text.encode())
            for target in (STREAM, "s"):
                certificate = await controller.evidence.disposal(target)
                said = json.loads(certificate.text)["statement"]
                assert (said["removals"], said["bytes"], said["events"]) == (1, 30, 3)
                assert holds(key, certificate=certificate.text.encode())
            empty = await controller.evidence.disposal("s", from_ms=0, to_ms=1)
            assert json.loads(empty.text)["statement"]["removals"] == 0
            assert holds(key, certificate=empty.text.encode())
            for missing in ("none", StreamName("s", "none"), StreamName("none", "t")):
                with pytest.raises(NotFoundError):
                    await controller.evidence.disposal(missing)
            with pytest.raises(NotFoundError):
                await controller.evidence.hold("\udcff")
            with pytest.raises(NotFoundError):
                await controller.evidence.hold("none")
            with pytest.raises(NotFoundError):
                await controller.evidence.erasure("none")

    asyncio.run(run())


def test_the_key_is_a_file_of_its_owner_alone_and_is_replaced_by_one_that_it_signs(tmp_path):
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        async with signing(segments, tmp_path, clock) as controller:
            first = (await controller.evidence.log()).key
            (file,) = key_files(tmp_path)
            assert file.stat().st_mode & 0o777 == 0o600
            assert file.parent.stat().st_mode & 0o777 == 0o700
            old = await controller.evidence.checkpoint()
            second = (await controller.evidence.rotate_key()).key
            assert key_files(tmp_path) != [file]
            assert len(key_files(tmp_path)) == 1
        async with signing(segments, tmp_path, clock) as controller:
            assert (await controller.evidence.log()).key == second != first
            data = await exported(controller, segments)
            assert holds(first, export=data, old=old.note.encode())
            entries = [json.loads(line) for line in data.split(b"\n")[1:-1]]
            assert [entry["action"] for entry in entries if entry["kind"] == "key"][-2:] == ["created", "rotated"]
            assert bytes.fromhex(key_files(tmp_path)[0].read_text()) not in data

    asyncio.run(run())


@pytest.mark.parametrize("effect_first", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", ["log", "rotate_key", "checkpoint"])
def test_after_a_crash_at_any_step_one_key_signs_and_everything_holds(tmp_path, call, effect_first):
    async def run():
        for step in range(1, 40):
            segments, clock, data = MemorySegments(), FakeClock(), tmp_path / str(step)
            data.mkdir()
            first = None
            async with signing(segments, data, clock) as controller:
                await decide(controller, 0)
                await controller.drain_audit()
                if call != "log":
                    first = (await controller.evidence.log()).key
            segments.arm(step, effect_first=effect_first)
            with suppress(ContainerOfflineError, UnavailableError):
                async with signing(segments, data, clock) as controller:
                    await getattr(controller.evidence, call)()
            met = segments.offline
            segments.heal()
            async with signing(segments, data, clock) as controller:
                now = await controller.evidence.checkpoint()
                key = (await controller.evidence.log()).key
                exports = {"export": await exported(controller, segments), "now": now.note.encode()}
                assert holds(first or key, **exports)
                await controller.evidence.rotate_key()
                assert len(key_files(data)) == 1
            if not met:
                return
        raise AssertionError("never got through without a fault")

    asyncio.run(run())


class Overtaken(FileSigningKeys):
    """Another controller becomes active and rotates while this one lists its keys, before or after it has them."""

    def __init__(self, data, *, before):
        super().__init__(data)
        self.before = before
        self.rotate = None

    async def listed(self):
        rotate, self.rotate = self.rotate, None
        if rotate is not None and self.before:
            await rotate()
        found = await super().listed()
        if rotate is not None and not self.before:
            await rotate()
        return found


@pytest.mark.parametrize("before", [True, False])
def test_a_controller_that_was_overtaken_deletes_no_key_of_the_next(tmp_path, before):
    async def run():
        segments, keys = MemorySegments(), Overtaken(tmp_path, before=before)
        async with signing(segments, tmp_path, keys=keys) as slow, signing(segments, tmp_path) as other:
            await slow.evidence.rotate_key()
            keys.rotate = other.evidence.rotate_key
            await slow.evidence.rotate_key()
            key = (await other.evidence.log()).key
            assert holds(key, now=(await other.evidence.checkpoint()).note.encode())
            assert len(key_files(tmp_path)) == 1

    asyncio.run(run())


class FullKeys(FileSigningKeys):
    full = True

    async def create(self):
        if self.full:
            raise StorageFullError("disk is full")
        return await super().create()


def test_a_full_disk_changes_no_key(tmp_path):
    async def run():
        segments, keys = MemorySegments(), FullKeys(tmp_path)
        async with signing(segments, tmp_path, keys=keys) as controller:
            with pytest.raises(StorageFullError):
                await controller.evidence.log()
            keys.full = False
            key = (await controller.evidence.log()).key
            keys.full = True
            with pytest.raises(StorageFullError):
                await controller.evidence.rotate_key()
            assert (await controller.evidence.log()).key == key
            assert holds(key, now=(await controller.evidence.checkpoint()).note.encode())

    asyncio.run(run())


def test_a_key_that_is_lost_damaged_or_readable_by_others_is_refused(tmp_path):
    async def run():
        segments = MemorySegments()
        async with signing(segments, tmp_path) as controller:
            await controller.evidence.log()
            (file,) = key_files(tmp_path)
            text = file.read_bytes()
            file.chmod(0o644)
            with pytest.raises(InvalidArgumentError):
                await controller.evidence.checkpoint()
            file.chmod(0o600)
            file.write_bytes(b"00" * 32)
            with pytest.raises(CorruptDataError):
                await controller.evidence.checkpoint()
            file.unlink()
            with pytest.raises(NotFoundError):
                await controller.evidence.checkpoint()
            file.write_bytes(text)
            file.chmod(0o600)
            await controller.evidence.checkpoint()

    asyncio.run(run())


def test_a_day_with_entries_ends_with_a_checkpoint(tmp_path):
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        async with signing(segments, tmp_path, clock) as controller:
            await decide(controller, 0)
            await controller.evidence.sweep()
            assert not (tmp_path / DIRECTORY).exists()
            for day in range(3):
                clock.ms += DAY_MS + 1
                await controller.evidence.sweep()
                assert len(await controller.evidence.checkpoints()) == day + 1
                await decide(controller, day)
            await controller.evidence.sweep()
            clock.ms += DAY_MS + 1
            await controller.evidence.sweep()
            clock.ms += DAY_MS + 1
            await controller.evidence.sweep()
            assert len(await controller.evidence.checkpoints()) == 4

    asyncio.run(run())


class SlowSegments(MemorySegments):
    """Reads and looks take time, so that appends happen meanwhile."""

    async def read(self, *args, **options):
        await asyncio.sleep(0)
        return await super().read(*args, **options)

    async def table_get(self, *args):
        found = await super().table_get(*args)
        await asyncio.sleep(0)
        return found


def test_no_tile_is_lost_while_checkpoints_are_signed(tmp_path):
    async def run():
        segments = SlowSegments()
        async with signing(segments, tmp_path) as controller:
            await controller.evidence.log()
            for number in range(0, 2000, 20):
                deciding = (decide(controller, number + one) for one in range(20))
                await asyncio.gather(*deciding, controller.evidence.checkpoint(), controller.evidence.checkpoint())
            state = await controller._ctx.audit.log.state()
            tiles = [tile.number async for tile in controller._ctx.audit.log.tiles(state)]
            assert tiles == list(range(state.size // 256))

    asyncio.run(run())
