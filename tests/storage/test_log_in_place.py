"""Appends of the local log without an await: the same laws, and None wherever they would have to wait."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from local_log_kit import LIMITS, die, opened, real, recovered

from penstock.model.errors import ContainerOfflineError
from penstock.storage.log.local_log import LocalLog
from penstock.storage.machine import files
from penstock.storage.machine.files import RealFile, RealFiles
from penstock.storage.machine.offload import ThreadOffload


async def rested(log: LocalLog) -> None:
    """Let the committer come to rest, with a file to write to."""
    await log.append([b"first"])
    for _ in range(5):
        await asyncio.sleep(0)


def test_appends_in_place_and_by_the_committer_keep_one_order(tmp_path: Path) -> None:
    async def run() -> None:
        log, _ = await opened(real(tmp_path))
        expected = [(1, b"first")]
        await rested(log)
        for number in range(40):
            frames = [[b"%d." % number, b"a"], [b"%d.b" % number]]
            addresses = log.append_in_place(frames)
            if addresses is None:
                # No room in this file: the committer finds the next one.
                addresses = [await log.append(parts) for parts in frames]
                await rested(log)
                expected += [(address, b"".join(parts)) for address, parts in zip(addresses, frames, strict=True)]
                expected.append((int(log.last), b"first"))
                continue
            assert addresses == [expected[-1][0] + 1, expected[-1][0] + 2]
            assert log.last == addresses[-1]
            expected += [(address, b"".join(parts)) for address, parts in zip(addresses, frames, strict=True)]
        await die(log)
        assert await recovered(real(tmp_path)) == expected

    asyncio.run(run())


def test_nothing_overtakes_what_is_queued(tmp_path: Path) -> None:
    async def run() -> None:
        log, _ = await opened(real(tmp_path))
        assert log.append_in_place([[b"no file yet"]]) is None
        await rested(log)
        waiting = asyncio.ensure_future(log.append([b"queued"]))
        await asyncio.sleep(0)
        assert log.append_in_place([[b"late"]]) is None
        assert await waiting == 2
        await rested(log)
        assert log.append_in_place([[b"x" * (LIMITS.max_frame_bytes + 1)]]) is None
        assert log.append_in_place([[b"now"]]) == [4]
        await log.close()
        assert log.append_in_place([[b"closed"]]) is None

    asyncio.run(run())


def test_a_slow_disk_is_never_waited_for_in_place(tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            log, _ = await opened(RealFiles(tmp_path, offload, placement="thread"))
            await log.append([b"first"])
            await asyncio.sleep(0.01)
            assert log.append_in_place([[b"x"]]) is None
            await log.close()

    asyncio.run(run())


def test_a_disk_that_becomes_slow_during_an_append_does_not_end_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        log, _ = await opened(real(tmp_path))
        await rested(log)
        sync = os.fdatasync

        def last_fast_sync(descriptor: int) -> None:
            sync(descriptor)
            # From now on, a read in place would wait: as on tmpfs, which does not report what is cached.
            monkeypatch.setattr(files, "read_cached", lambda *_: None)
            monkeypatch.setattr(RealFile, "_in_place", lambda *_: False)

        monkeypatch.setattr(os, "fdatasync", last_fast_sync)
        assert log.append_in_place([[b"acknowledged"]]) == [2]
        monkeypatch.setattr(os, "fdatasync", sync)
        assert log.append_in_place([[b"slow"]]) is None
        assert await log.append([b"by the committer"]) == 3
        await log.close()
        assert [frame for _, frame in await recovered(real(tmp_path))] == [
            b"first",
            b"acknowledged",
            b"by the committer",
        ]

    asyncio.run(run())


def test_a_failed_sync_in_place_takes_the_log_offline_and_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        log, _ = await opened(real(tmp_path))
        await rested(log)

        def broken(descriptor: int) -> None:
            raise OSError(errno.EIO, "input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", broken)
            with pytest.raises(ContainerOfflineError):
                log.append_in_place([[b"lost"]])
        assert log.last == 1
        assert log.append_in_place([[b"later"]]) is None
        with pytest.raises(ContainerOfflineError):
            await log.append([b"later"])
        await log.close()

    asyncio.run(run())


def test_a_fenced_opening_acknowledges_nothing_in_place(tmp_path: Path) -> None:
    async def run() -> None:
        old, _ = await opened(real(tmp_path))
        await rested(old)
        assert old.append_in_place([[b"mine"]]) == [2]
        new, frames = await opened(real(tmp_path))
        assert [frame for _, frame in frames] == [b"first", b"mine"]
        with pytest.raises(ContainerOfflineError):
            old.append_in_place([[b"not mine any more"]])
        await rested(new)
        assert new.append_in_place([[b"ours"]]) == [4]
        await new.close()
        await old.close()
        assert [frame for _, frame in await recovered(real(tmp_path))] == [b"first", b"mine", b"first", b"ours"]

    asyncio.run(run())
