"""A simulated node: the product's own log, chunks, store, controller and wire server over simulated files.

A node runs once. When it dies, its waiting callers get a lost connection, its tasks are cancelled, and all its later
file operations fail. The next node starts from the same disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from contextvars import copy_context
from operator import attrgetter
from typing import Any, cast

from penstock.app.telemetry import Counters
from penstock.controller.controller import Controller, open_controller
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import NotConnectedError, PenstockError, StorageFullError
from penstock.net.dial.segments import DialLimits, RemoteSegments
from penstock.net.native.remote import NativeSegments
from penstock.net.wire.wire_server import WireLimits, WireServer
from penstock.ports.chunks import ChunkStorage
from penstock.ports.control.layout import Endpoint
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.segments import Append, AppendDone, Appended
from penstock.ports.data.service import SegmentService
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.store import SegmentStore, open_segment_store
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.log.local_log import open_local_log
from penstock.storage.machine.disk import FileDisk
from penstock.storage.objects.file_objects import FileObjects
from penstock.testing.fakes import SeededRng
from penstock.testing.simulation.config import SimConfig
from penstock.testing.simulation.history import History
from penstock.testing.simulation.machine.files import NodeCrashed, SimDisk, SimFiles
from penstock.testing.simulation.machine.loop import Process, SimLoop, current_process
from penstock.testing.simulation.machine.world import SimClock, SimKeyValue, SimKeyValueState, SimOffload

PORT = 12345
_FRAME_ROOM = 4096  # bytes of a log file that no frame may take: its headers and padding
_WATCH_S = 0.25


class SimNode:
    """One life of the process. Fields are set once it serves."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.process = Process(f"node-{number}")
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.store: SegmentStore
        self.controller: Controller
        self.chunks: FileChunks
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopping = False
        self._stop = asyncio.Event()
        self._pending: dict[int, Callable[[], None]] = {}
        self._next_call = 0
        self.main = asyncio.get_running_loop().create_task(self._live(), context=self.process.context)

    @property
    def serves(self) -> bool:
        return self.process.alive and self.ready.done() and self.ready.exception() is None

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                await self._open(stack)
                self.ready.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if self.ready.done():
                raise
            if not isinstance(error, Exception):
                self.ready.cancel()
                raise
            self.ready.set_exception(error)

    async def _open(self, stack: AsyncExitStack) -> None:
        cluster, config = self.cluster, self.cluster.config
        files = SimFiles(cluster.disk)
        offload = SimOffload(files)
        log = await stack.enter_async_context(
            open_local_log(
                files,
                segment_bytes=config.log_file_bytes,
                budget_bytes=config.log_file_bytes * config.log_files,
                max_frame_bytes=config.log_file_bytes - _FRAME_ROOM,
                queue_bytes=config.log_file_bytes,
                rng=cluster.rng,
            )
        )
        self.chunks = FileChunks(files, handles=config.chunk_handles)
        stack.push_async_callback(self.chunks.close)
        self.objects = FileObjects(files)
        keyvalue = SimKeyValue(cluster.rows, cluster.disk)
        self.store = await stack.enter_async_context(
            open_segment_store(
                log,
                StoreParts(
                    keyvalue=keyvalue,
                    chunks=self.chunks,
                    clock=cluster.clock,
                    rng=cluster.rng,
                    offload=offload,
                    telemetry=cluster.figures,
                    settings=config.store,
                    catalogue=self.objects,
                ),
                disk=FileDisk(files),
            )
        )
        cluster.prepare_store(self.store)
        if config.evicts:
            # Not earlier: no segment leaves memory during recovery.
            files.stepped = self._evict
            keyvalue.after_steps(self._evict)
        self.controller = await stack.enter_async_context(
            open_controller(
                self.store,
                cluster.clock,
                cluster.rng,
                lambda _: Endpoint(host="store", port=PORT),
                cluster.figures,
                cluster.controller_settings(),
            )
        )
        await stack.enter_async_context(
            WireServer(
                self.store,
                host="store",
                port=PORT,
                rng=cluster.rng,
                telemetry=cluster.figures,
                limits=WireLimits(drain_s=1.0),
            )
        )

    def _evict(self) -> None:
        """Evict every segment that may leave memory."""
        for container in self.store.containers:
            for _ in range(2):
                container.segments.evict_idle(0)

    # --- calls from outside ---------------------------------------------------------------------------------------

    def _expect(self, lost: Callable[[], None]) -> int:
        self._next_call += 1
        self._pending[self._next_call] = lost
        return self._next_call

    async def call(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The answer of a call into the process. Raises NotConnectedError once it is dead."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def lost() -> None:
            if not answer.done():
                answer.set_exception(_lost())

        number = self._expect(lost)
        task = loop.create_task(work(), context=self.process.context)

        def ended(done: asyncio.Task[Any]) -> None:
            self._pending.pop(number, None)
            error = None if done.cancelled() else done.exception()
            if answer.done():
                return
            if done.cancelled() or not self.process.alive:
                answer.set_exception(_lost())
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(done.result())

        task.add_done_callback(ended)
        try:
            return await answer
        except asyncio.CancelledError:
            task.cancel()
            raise

    def submit_append(self, request: Append, done: AppendDone) -> None:
        """As ``LocalSegmentService.submit_append``; a node that dies answers with NotConnectedError."""
        number = self._expect(lambda: done(_lost()))
        client = copy_context()

        def answered(result: Appended | PenstockError) -> None:
            # An answer in flight when the process died is lost.
            if self.process.alive and self._pending.pop(number, None) is not None:
                client.copy().run(done, result)

        self.process.context.run(self.store.submit_append, request, answered)

    # --- ends -----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process at once."""
        self.process.die()
        self.died.set_result(None)
        pending, self._pending = self._pending, {}
        loop = asyncio.get_running_loop()
        for lost in pending.values():
            loop.call_soon(lost)

    async def stop(self) -> None:
        """Stop cleanly, after a checkpoint of everything."""
        self.stopping = True
        self._stop.set()
        await asyncio.wait({self.main, self.died}, return_when=asyncio.FIRST_COMPLETED)


def _lost() -> NotConnectedError:
    return NotConnectedError("the process is gone")


class Port:
    """A service of the live node: each call goes to the node that is alive at that time."""

    withdraw_appends = None
    """Nothing waits here for a node to come back, so nothing can be withdrawn."""
    open_direct = None

    def __init__(self, cluster: Cluster, service: str) -> None:
        self._cluster = cluster
        self._service = service

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            node = self._cluster.serving()
            service = attrgetter(self._service)(node)
            return await node.call(lambda: getattr(service, name)(*args, **kwargs))

        return call


class ControlPort:
    """The control plane of the live node, by subject."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Port | Callable[..., Coroutine[Any, Any, Any]]:
        if isinstance(getattr(ControlPlane, name, None), property):
            return Port(self._cluster, f"controller.{name}")
        found: Callable[..., Coroutine[Any, Any, Any]] = getattr(Port(self._cluster, "controller"), name)
        return found


class LocalPort(Port):
    """The store in the same process as its client, including appends without a task of their own."""

    def submit_append(self, request: Append, done: AppendDone) -> None:
        try:
            self._cluster.serving().submit_append(request, done)
        except NotConnectedError as error:
            asyncio.get_running_loop().call_soon(done, error)

    async def append(self, request: Append) -> Appended:
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

        def done(result: Appended | PenstockError) -> None:
            if answer.done():
                return
            if isinstance(result, PenstockError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        self.submit_append(request, done)
        return await answer


class Cluster:
    """The disk, the clock, and the live node on them. Supervises the node as an init system does."""

    def __init__(self, loop: SimLoop, config: SimConfig, history: History) -> None:
        self.loop = loop
        self.config = config
        self.history = history
        self.disk = SimDisk(loop.fork("disk"))
        self.disk.latency_s = config.latency_s
        self.disk.slow_s = config.slow_s
        self.disk.in_place = config.in_place
        self.rows = SimKeyValueState()
        self.clock = SimClock(loop)
        self.rng = SeededRng(loop.fork("node"))
        self.figures = Counters()
        self.node: SimNode | None = None
        self.crashes = 0
        self.recoveries = 0
        self._excuses = 0
        self.refusals = 0
        """Failed starts without a fault that explains them."""
        self.crash_in_recovery_s: float | None = None
        self.recovery_power = False
        self._lives = 0
        self._dead: list[SimNode] = []
        self._wanted = asyncio.Event()
        self._wanted.set()

    def controller_settings(self) -> ControllerSettings:
        """Settings of the controller of every node."""
        rates = self.config.rates
        return ControllerSettings(
            sweep_ms=self.config.sweep_ms,
            retention_cycle_ms=self.config.retention_cycle_ms,
            scaling_minute_ms=None if rates is None else rates.minute_ms,
            watermark_ms=None if rates is None else rates.watermark_ms,
        )

    def prepare_store(self, store: SegmentStore) -> None:
        """Called for the store of every node before its controller opens. Does nothing here."""

    # --- for clients ----------------------------------------------------------------------------------------------

    def serving(self) -> SimNode:
        """Raises NotConnectedError."""
        if self.node is None or not self.node.serves:
            raise _lost()
        return self.node

    @property
    def controller(self) -> ControlPlane:
        return cast("ControlPlane", ControlPort(self))

    @property
    def chunks(self) -> ChunkStorage:
        return cast("ChunkStorage", Port(self, "chunks"))

    @property
    def local(self) -> SegmentService:
        return cast("SegmentService", LocalPort(self, "store"))

    @property
    def native(self) -> NativeSegments:
        """The calls of the store that the wire protocol lacks, without a network."""
        return cast("NativeSegments", LocalPort(self, "store"))

    def remote(self, label: str) -> RemoteSegments:
        """A client over the wire. The caller closes it."""
        return RemoteSegments(
            self.controller,
            native=self.native,
            rng=SeededRng(self.loop.fork(f"client/{label}")),
            telemetry=Counters(),
            limits=DialLimits(connect_s=2.0, keepalive_s=3.0, backoff_max_s=0.5),
        )

    # --- life and death -------------------------------------------------------------------------------------------

    async def supervise(self) -> None:
        """Keep a node alive while one is wanted: start it, watch it, start the next one."""
        rng = self.loop.fork("supervisor")
        failures = 0
        while True:
            await self._wanted.wait()
            if self.node is not None and self.node.process.alive:
                if self.node.main.done():
                    self.bury(self.node)
                else:
                    self._look(self.node)
                await asyncio.sleep(_WATCH_S)
                continue
            await asyncio.sleep(rng.random() * 0.3)
            failures = 0 if await self._start() else failures + 1
            if failures > 60 or self.refusals > 3:
                self.history.violation("cannot start", f"{failures} attempts failed")
                return
            if failures:
                await asyncio.sleep(min(1.0, 0.1 * failures))

    async def _start(self) -> bool:
        self._lives += 1
        node = self.node = SimNode(self, self._lives)
        self.history.note(f"start {node.number}")
        if self.crash_in_recovery_s is not None:
            delay_s, self.crash_in_recovery_s = self.crash_in_recovery_s, None
            self.loop.call_later(delay_s, self._crash_in_recovery, node)
        await asyncio.wait({node.ready, node.main, node.died}, return_when=asyncio.FIRST_COMPLETED)
        if node.serves:
            self.recoveries += 1
            self.history.note(f"serving {node.number}")
            return True
        if not node.process.alive:
            # Ignore what its tasks still wait for: they were all cancelled at the same time.
            return True
        error = node.ready.exception() if node.ready.done() and not node.ready.cancelled() else None
        self.history.note(f"start failed {node.number} {error!r}")
        if error is not None and not self._excused(error):
            self.refusals += 1
            self.history.violation("recovery failed", repr(error))
        self.bury(node)
        return False

    def _crash_in_recovery(self, node: SimNode) -> None:
        if node is self.node and not node.ready.done():
            self.history.note("crash in recovery")
            self.crash(power=self.recovery_power)

    def _excused(self, error: BaseException | None) -> bool:
        """Whether an injected fault explains the failure."""
        return isinstance(error, NodeCrashed | StorageFullError) or self._log_failed()

    def _log_failed(self) -> bool:
        """Whether a sync of the log was made to fail since the last call."""
        failed = sum(path.startswith("wal/") for path in self.disk.failed_syncs)
        before, self._excuses = self._excuses, failed
        return failed > before

    def _look(self, node: SimNode) -> None:
        offline = node.store.offline if node.serves else None
        if offline is None or node.stopping:
            return
        self.history.note(f"offline {node.number} {offline}")
        if not self._log_failed():
            self.history.violation("offline without a fault", str(offline))
        # The bytes that the failed sync lost are still in the page cache, marked clean. The next power loss removes
        # them.
        self.crash(power=False)

    def crash(self, *, power: bool) -> None:
        """Kill the node now. With ``power``, unsynced data is also lost, in full or in part."""
        node = self.node
        self.disk.crash(power=power)
        self.loop.network.close_listener(PORT)
        self.loop.network.reset_all(PORT)
        if node is not None and node.process.alive:
            self.crashes += 1
            self.history.note(f"crash {node.number} power={power}")
            node.kill()
            self._dead.append(node)

    async def stop(self) -> None:
        """An orderly stop; the supervisor starts the next node."""
        node = self.node
        if node is None or not node.serves:
            return
        self.history.note(f"stop {node.number}")
        await node.stop()
        self.bury(node)

    def bury(self, node: SimNode) -> None:
        """The process has ended by itself: end everything that it has left."""
        if node.process.alive:
            error = node.main.exception() if node.main.done() and not node.main.cancelled() else None
            if node.stopping and error is not None and not self._excused(error):
                self.history.violation("stop failed", repr(error))
            self.disk.crash(power=False)
            self.loop.network.close_listener(PORT)
            self.loop.network.reset_all(PORT)
            node.kill()
            self._dead.append(node)

    async def close(self) -> None:
        """Stop permanently, and let the tasks of all nodes end."""
        self._wanted.clear()
        await self.stop()
        for node in self._dead:
            for _ in range(50):
                left = node.process.running()
                if not left:
                    break
                for task in left:
                    task.cancel()
                await asyncio.sleep(0.05)


class LogWatch(logging.Handler):
    """Reports a failure that the product logs, but should never have, as a violation."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.WARNING)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        if process is not None and not process.alive:
            return
        error = record.exc_info[1] if record.exc_info else None
        self._history.note(f"log {record.getMessage()} {error!r}")
        if error is not None and not isinstance(error, PenstockError | OSError | NodeCrashed):
            self._history.violation("unexpected error", f"{record.getMessage()}: {error!r}")
