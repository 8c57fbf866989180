"""Stores on a disk, of which parts are removed; and what a start then finds."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from integrity_world import WRITER, content

from penstock.app.embedded import open_runtime
from penstock.app.settings import EmbeddedSettings
from penstock.client.store import AsyncStore
from penstock.model.errors import PenstockError
from penstock.ports.data.segments import Append

SEGMENTS = ("s/t/0.#epoch.0", "s/t/1.#epoch.0")
_WHOLE = 1 << 20


def settings_of(data: Path, tier2: Path | None = None) -> EmbeddedSettings:
    return EmbeddedSettings(
        data=data,
        log_bytes=80 << 20,
        retention_cycle_ms=3_600_000,
        tier2=None if tier2 is None else str(tier2),
    )


async def _fill(data: Path, tier2: Path | None, *, keep_at: Path | None) -> None:
    async with open_runtime(settings_of(data, tier2)) as runtime:
        store = AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)
        await store.create_stream("s/t", segments=2, create_scope=True)
        for number in range(6):
            for segment in SEGMENTS:
                last = await runtime.segments.setup_append(segment, WRITER)
                await runtime.segments.append(
                    Append(
                        segment=segment,
                        writer=WRITER,
                        data=b"%08d" % number * 100,
                        event_number=max(last, -1) + 1,
                        event_count=1,
                        previous=last,
                    )
                )
            if number == 3:
                await runtime.segments.flush()
        if keep_at is not None:
            copy(data, keep_at)


def make(data: Path, *, tier2: Path | None = None, killed: bool = False) -> Path:
    """A store with bytes in chunks and in the log. ``killed``: as a process that is killed leaves it."""
    if not killed:
        asyncio.run(_fill(data, tier2, keep_at=None))
        return data
    asyncio.run(_fill(data.with_name("running"), tier2, keep_at=data))
    shutil.rmtree(data.with_name("running"))
    return data


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


def remove(data: Path, names: Iterable[str]) -> None:
    for name in names:
        path = data / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def files_of(data: Path) -> Mapping[str, object]:
    """Every file but ``LOCK``, which says who looked last: its bytes, and for large ones when it was written."""
    found: dict[str, object] = {}
    for path in sorted(data.rglob("*")):
        if path.is_file() and path.name != "LOCK":
            stat = path.stat()
            large = stat.st_size > _WHOLE
            known = stat.st_mtime_ns if large else hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(data))] = (stat.st_size, known)
        elif path.is_dir():
            found[str(path.relative_to(data))] = "directory"
    return found


def read_all(data: Path) -> Mapping[str, bytes]:
    """What a start serves of the two segments. Raises what it refuses with."""

    async def read() -> Mapping[str, bytes]:
        async with open_runtime(settings_of(data)) as runtime:
            found = {}
            for segment in SEGMENTS:
                info = await runtime.segments.info(segment)
                found[segment] = await content(runtime, segment, info.start_offset, info.length)
            return found

    return asyncio.run(read())


EXPECTED = {segment: b"".join(b"%08d" % number * 100 for number in range(6)) for segment in SEGMENTS}


def _outcome(data: Path) -> tuple[Mapping[str, bytes] | None, PenstockError | None]:
    try:
        return read_all(data), None
    except PenstockError as error:
        return None, error


def check_two_starts(data: Path) -> PenstockError | None:
    """Start twice: each serves the right data, or is refused and changes no file. Returns the refusal."""
    refusal: PenstockError | None = None
    for _ in range(2):
        before = files_of(data)
        found, error = _outcome(data)
        if error is None:
            assert refusal is None, "a start was refused, and the next one was not"
            assert found == EXPECTED
        else:
            refusal = error
            assert files_of(data) == before, error
    return refusal
