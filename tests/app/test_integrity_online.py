"""The scrub of a store that runs, over its port; and a rebuild from an object store."""

import asyncio
import json
from pathlib import Path

from integrity_world import SEGMENTS, append, block, fill, settings_of
from typer.testing import CliRunner

from penstock.app.cli.main import app
from penstock.app.integrity.rebuild import rebuild_source
from penstock.app.integrity.source import Source
from penstock.app.settings import StandaloneSettings
from penstock.app.standalone import open_standalone
from penstock.app.telemetry import Counters
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import open_segment_store
from penstock.storage.chunks.object_chunks import ObjectChunks
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.memory.memory_log import MemoryLog
from penstock.storage.memory.memory_objects import MemoryObjects


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def test_a_running_server_is_scrubbed_over_its_port(tmp_path: Path) -> None:
    data = tmp_path / "store"

    async def main() -> None:
        settings = StandaloneSettings(store=settings_of(data), controller_port=0, store_port=0, http_port=0)
        async with open_standalone(settings) as server:
            await fill(server.runtime)
            await server.runtime.segments.flush()
            address = f"{server.controller.host}:{server.controller.port}"

            def call(*more: str):
                return CliRunner().invoke(app, ["scrub", "--controller", address, "--rate", "1GiB/s", *more])

            sound = await asyncio.to_thread(call, "--json")
            assert sound.exit_code == 0, sound.output
            report = json.loads(sound.output)
            assert report["sound"]
            assert report["finished"]
            for name in ("rows", "frames", "objects", "segments", "chunks", "blocks"):
                assert report["checked"][name] > 0, name
            in_use = await asyncio.to_thread(lambda: CliRunner().invoke(app, ["doctor", "--data", str(data)]))
            assert in_use.exit_code != 0
            victim = max(
                (path for path in (data / "chunks").rglob("*") if path.is_file() and path.suffix != ".idx"),
                key=lambda path: path.stat().st_size,
            )
            flip(victim)
            damaged = await asyncio.to_thread(call, "--json")
            assert damaged.exit_code == 7, damaged.output
            (found,) = json.loads(damaged.output)["damage"]
            assert (found["kind"], found["place"]) == ("block", f"{victim.parent.name}/{victim.name}")

    asyncio.run(main())


def test_a_store_in_objects_is_rebuilt_from_them(tmp_path: Path) -> None:
    async def main() -> None:
        objects, offload = MemoryObjects(), ThreadOffload()
        whole: dict[str, bytes] = {}
        try:
            async with open_segment_store(
                MemoryLog(),
                StoreParts(
                    keyvalue=MemoryKeyValue(),
                    chunks=ObjectChunks(objects),
                    clock=RealClock(),
                    rng=RealRng(),
                    offload=offload,
                    telemetry=Counters(),
                    settings=StoreSettings(tier_unit_bytes=1 << 16, catalogue_interval_s=60.0),
                    catalogue=objects,
                ),
            ) as store:

                class Runtime:
                    segments = store

                for name in SEGMENTS:
                    await store.create_segment(name)
                    for number in range(12):
                        await append(Runtime, name, block(number))
                        if number % 4 == 3:
                            await store.flush()
                    whole[name] = b"".join(block(number) for number in range(12))
                await store.truncate(SEGMENTS[0], 2997 * 2)
                await store.flush()
            source = Source(place="memory", chunks=ObjectChunks(objects), objects=objects)
            names = {name: await objects.size(name) for name in await objects.list("chunks")}
            report = await rebuild_source(source, tmp_path / "new", offload=offload)
            assert report.damage == []
            assert report.lost == []
            assert report.segments == 3
            assert report.streams.made == [
                "the controller's metadata is not there: segments are kept, but no stream is known"
            ]
            assert {name: await objects.size(name) for name in await objects.list("chunks")} == names
        finally:
            await offload.close()
        from integrity_world import content, running

        async with running(tmp_path / "new") as runtime:
            for name, data in whole.items():
                info = await runtime.segments.info(name)
                assert info.start_offset == (2997 * 2 if name == SEGMENTS[0] else 0)
                assert await content(runtime, name, info.start_offset, info.length) == data[info.start_offset :]

    asyncio.run(main())
