"""The store of production with small sizes and short intervals, so that a second of work meets every path of its files."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from penstock.app.embedded import Runtime
from penstock.app.settings import EmbeddedSettings
from penstock.app.telemetry import Counters
from penstock.app.tier2 import open_tier
from penstock.controller.controller import open_controller
from penstock.controller.settings import ControllerSettings
from penstock.ports.control.layout import Endpoint
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import open_segment_store
from penstock.storage.log.local_log import open_local_log
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.disk import FileDisk
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.reserve import keep_reserve
from penstock.storage.machine.rng import RealRng
from penstock.storage.rows import sqlite_room
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue
from penstock.testing.fakes import InlineOffload

T = TypeVar("T")

LOG_FILE_BYTES = 96 << 10
LOG_FILES = 8
RESERVE_BYTES = 64 << 10
ROOM_BYTES = 32 << 10
_FRAME_ROOM = 4096


def small_settings() -> StoreSettings:
    """Sizes at which a few hundred appends roll chunks and log files, tier, checkpoint and give back."""
    return StoreSettings(
        containers=2,
        cache_bytes=64 << 10,
        read_cache_bytes=4 << 10,
        chunk_bytes=6 << 10,
        flush_bytes=2 << 10,
        flush_interval_s=0.02,
        checkpoint_interval_s=0.03,
        checkpoint_bytes=LOG_FILE_BYTES,
        frame_operations=8,
        frame_bytes=16 << 10,
        max_unflushed_bytes=64 << 10,
        free_head_bytes=4096,
        retry_min_s=0.01,
        retry_max_s=0.05,
    )


@asynccontextmanager
async def open_small_store(data: Path, *, tier2: Path | None = None) -> AsyncIterator[Runtime]:
    """The parts of ``open_runtime``, in its order. Raises what it raises."""
    clock, rng, telemetry = RealClock(), RealRng(), Counters()
    offload = InlineOffload()
    settings = EmbeddedSettings(data=data, tier2=None if tier2 is None else str(tier2))
    async with AsyncExitStack() as stack:
        # Room for a full disk: four megabytes in each of SQLite's two files would be most of what a crash state holds.
        stack.enter_context(patch.object(sqlite_room, "ROOM_BYTES", ROOM_BYTES))
        directory = DataDirectory.open(data)
        stack.callback(directory.close)
        files = RealFiles(data, offload)
        await keep_reserve(files, size_bytes=RESERVE_BYTES)
        log = await stack.enter_async_context(
            open_local_log(
                files,
                directory="wal",
                segment_bytes=LOG_FILE_BYTES,
                budget_bytes=LOG_FILE_BYTES * LOG_FILES,
                max_frame_bytes=LOG_FILE_BYTES - _FRAME_ROOM * 2,
                queue_bytes=LOG_FILE_BYTES,
                rng=rng,
            )
        )
        await files.make_dir("metadata")
        keyvalue = await SqliteKeyValue.open(data / "metadata" / "store.db", offload)
        stack.push_async_callback(keyvalue.close)
        # These lives are short: by itself, SQLite would never move its log into the file and begin it again.
        keyvalue._writer.execute("PRAGMA wal_autocheckpoint=20")
        tier = await stack.enter_async_context(open_tier(settings, files, offload=offload, rng=rng))
        segments = await stack.enter_async_context(
            open_segment_store(
                log,
                StoreParts(
                    keyvalue=keyvalue,
                    chunks=tier.chunks,
                    catalogue=tier.objects,
                    clock=clock,
                    rng=rng,
                    offload=offload,
                    telemetry=telemetry,
                    settings=small_settings(),
                ),
                disk=FileDisk(files),
            )
        )
        controller = await stack.enter_async_context(
            open_controller(
                segments,
                clock=clock,
                rng=rng,
                endpoint_of=lambda segment: Endpoint(host="nowhere", port=0),
                telemetry=telemetry,
                settings=ControllerSettings(sweep_ms=200),
            )
        )
        yield Runtime(
            segments=segments,
            controller=controller,
            clock=clock,
            rng=rng,
            telemetry=telemetry,
            failure=lambda: segments.offline,
        )


def in_child(work: Callable[[], Coroutine[Any, Any, bytes]], *, timeout_s: float = 60.0) -> bytes:
    """What ``work`` returns in a process of its own, which then dies at once, as by ``kill -9``: nothing is closed.

    Empty where the child died before it could answer.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        logging.disable(logging.CRITICAL)
        try:
            os.set_blocking(writing, True)
            with os.fdopen(writing, "wb", closefd=False) as out:
                out.write(_answer(work, timeout_s))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        data = answer.read()
    os.waitpid(child, 0)
    return data


class _InlineExecutor(ThreadPoolExecutor):
    """Stands for threads that the loop would be given, for the same reason as ``InlineOffload``."""

    def submit(self, fn: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - raised where the answer is asked for
            done.set_exception(error)
        return done


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop that gives nothing to threads."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(_InlineExecutor())
    return loop


def _answer(work: Callable[[], Coroutine[Any, Any, bytes]], timeout_s: float) -> bytes:
    loop = new_loop()
    return loop.run_until_complete(asyncio.wait_for(work(), timeout_s))
