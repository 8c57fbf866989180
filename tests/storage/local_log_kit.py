"""What the tests of the local log share."""

from __future__ import annotations

from pathlib import Path

from penstock.ports.files import Files
from penstock.storage.log.limits import LogLimits
from penstock.storage.log.local_log import LocalLog
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload

LIMITS = LogLimits(segment_bytes=16_384, budget_bytes=8 * 16_384, max_frame_bytes=8_000)
ROOMY = LogLimits(segment_bytes=16_384, budget_bytes=64 * 16_384, max_frame_bytes=8_000)
Frames = list[tuple[int, bytes]]


class Crash(BaseException):
    """The process dies here."""


def real(path: Path) -> RealFiles:
    return RealFiles(path, ThreadOffload(), placement="inline")


async def opened(files: Files, limits: LogLimits = LIMITS) -> tuple[LocalLog, Frames]:
    log = await LocalLog.open(files, limits=limits)
    try:
        return log, [(int(address), frame) async for address, frame in log.replay()]
    except BaseException:
        await log.close()
        raise


async def recovered(files: Files, limits: LogLimits = LIMITS) -> Frames:
    log, frames = await opened(files, limits)
    await log.close()
    return frames


async def die(log: LocalLog) -> None:
    """End the tasks as a killed process would: without the mark that a clean close leaves."""
    log._fail(OSError("killed"))
    await log.close()


def images(path: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in (path / "wal").glob("*.log")}


def file_with(path: Path, payload: bytes) -> tuple[Path, int]:
    """The log file that holds the payload, and the offset of its frame."""
    for item in sorted((path / "wal").glob("*.log")):
        at = item.read_bytes().find(payload)
        if at >= 0:
            return item, at // 512 * 512
    raise AssertionError("payload is in no file")


async def write_and_die(path: Path, frames: list[bytes], limits: LogLimits = LIMITS) -> Frames:
    log, _ = await opened(real(path), limits)
    written = [(int(await log.append([frame])), frame) for frame in frames]
    await die(log)
    return written
