"""Actors on the one stream of a run: writers, the subscriber that audits it, readers, transactions, batches, scaling."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from uuid import UUID

from penstock.client.reading.reader import AsyncReader
from penstock.client.retry import RETRYABLE
from penstock.client.writing.settings import WriterSettings
from penstock.client.writing.transaction import AsyncTransaction
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InternalError,
    InvalidArgumentError,
    InvalidCutError,
    NotFoundError,
    PenstockError,
    RetentionHoldError,
    StreamSealedError,
    TransactionNotFoundError,
    TransactionStateError,
    TruncatedError,
    WriterInUseError,
)
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.policies import ReaderGroupRetention, RetentionPolicy, RetentionType, StreamConfig
from penstock.model.queries import QuerySource
from penstock.model.segments import KeyRange, SegmentRange
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.transactions import Transaction
from penstock.ports.data.imports import ChunkImports, ImportedChunk
from penstock.ports.data.service import SegmentService
from penstock.testing.simulation.actors import SCOPE, STREAM, Env, RawWriter, event
from penstock.testing.simulation.history import Group, Outcome, Reading, Write
from penstock.testing.simulation.rate_actors import AGGREGATION_MS, NotedTimes, Windows, scaling_policy
from penstock.testing.simulation.segment_actors import write_chunks

_SUBSCRIBER = "auditor"
_FULL_NAME = f"{SCOPE}/{_SUBSCRIBER}"
_SEGMENTS_MAX = 6


async def prepare_stream(env: Env) -> None:
    """Create the stream and its subscriber. Data is kept until the subscriber has acknowledged it."""
    config = StreamConfig(
        scaling=scaling_policy(env.config),
        retention=RetentionPolicy(type=RetentionType.SIZE, minimum=0),
        timestamp_aggregation_ms=0 if env.config.rates is None else AGGREGATION_MS,
    )

    async def create() -> None:
        try:
            await env.controller.scopes.create(SCOPE)
        except AlreadyExistsError:
            env.history.note("scope exists")
        try:
            await env.controller.streams.create(STREAM, config)
        except AlreadyExistsError:
            env.history.note("stream exists")

    await env.insist(create)
    head = await env.insist(lambda: env.controller.cuts.head(STREAM))
    group = ReaderGroupConfig(
        scope=SCOPE,
        name=_SUBSCRIBER,
        id=UUID(int=env.rng("group").getrandbits(128), version=4),
        retention=ReaderGroupRetention.MANUAL,
        start_cuts={STREAM: head},
    )
    await env.insist(lambda: env.controller.groups.create(group))
    env.acknowledged = head


# --- writing ------------------------------------------------------------------------------------------------------


async def write_stream(env: Env, name: str) -> None:
    """Writers of the client library, one after the other, each with its own writer id."""
    rng, config, history = env.rng(name), env.config, env.history
    store = env.store(name)
    life = 0
    while not env.stopping.is_set():
        life += 1
        writer_name = f"{name}.{life}"
        settings = WriterSettings(
            block_bytes=config.block_bytes,
            linger_s=rng.choice((0.0, 0.002)),
            max_in_flight=rng.choice((1, 4)),
            max_pending_bytes=rng.choice((4 << 10, 1 << 20)),
            deadline_s=45.0,
        )
        number = 0
        try:
            times = NotedTimes(env, writer_name)
            async with store.stream(STREAM).writer(settings) as writer:
                await times.begin(writer)
                for _ in range(rng.randrange(1, 30)):
                    batch: list[Write] = []
                    for _ in range(rng.randrange(1, 6)):
                        number += 1
                        key = f"key{rng.randrange(config.keys)}"
                        data = event(config, str(STREAM), writer_name, number, key, rng)
                        batch.append(history.write(str(STREAM), writer_name, number, key, data))
                        times.wrote(data)
                        await writer.write(data, key)
                    await writer.flush()
                    for item in batch:
                        history.acknowledged(item)
                    await times.note(writer)
                    await env.pause(rng)
                    if env.stopping.is_set():
                        break
                await times.note(writer, last=True)
        except RETRYABLE as error:
            history.note(f"writer {writer_name} failed: {error}")


async def write_transactions(env: Env, name: str) -> None:
    """Transactions of the client library: committed, aborted, or abandoned until their lease ends."""
    rng, history = env.rng(name), env.history
    store = env.store(name)
    count = 0
    while not env.stopping.is_set():
        count += 1
        group = history.group(f"{name}.{count}")
        try:
            await _transact(env, store.stream(STREAM).transaction(lease_s=10.0, block_bytes=1 << 10), group, rng)
        except (TransactionStateError, TransactionNotFoundError, TimeoutError, *RETRYABLE) as error:
            history.note(f"transaction {group.name} failed: {error}")
            if group.decided_s is None:
                history.decided(group, Outcome.FAILED)
        await env.pause(rng, factor=3)


async def _transact(env: Env, transaction: AsyncTransaction, group: Group, rng: random.Random) -> None:
    history = env.history
    async with asyncio.timeout(90):
        await transaction.open()
        try:
            for number in range(1, rng.randrange(2, 8)):
                key = f"key{rng.randrange(env.config.keys)}"
                data = event(env.config, str(STREAM), group.name, number, key, rng)
                history.write(str(STREAM), group.name, number, key, data, group=group)
                await transaction.write(data, key)
                if rng.random() < 0.2:
                    await env.pause(rng)
            await transaction.flush()
            await env.pause(rng, factor=rng.choice((0.3, 3, 10)))
            if rng.random() < 0.1:
                history.decided(group, Outcome.FAILED)  # Abandoned until its lease ends.
                return
            if rng.random() < 0.2:
                await transaction.abort()
                history.decided(group, Outcome.FAILED)
                return
            history.deciding(group)
            try:
                await transaction.commit(deadline_s=60)
            except (TransactionStateError, TransactionNotFoundError):
                history.decided(group, Outcome.FAILED)
                raise
            history.decided(group, Outcome.OK)
        finally:
            await transaction._tasks.close()
            if transaction._writer is not None:
                await transaction._writer.abort()


async def write_batches(env: Env, name: str) -> None:
    """A sink that commits numbered batches. After a lost answer it commits the same batch in new transactions."""
    rng, history = env.rng(name), env.history
    segments = env.segments(name)
    batch, queries, replaces = 0, 0, ""
    while not env.stopping.is_set():
        attempts: list[Group] = []
        done = False
        if batch and rng.random() < 0.2:
            # A new checkpoint under a used name is refused until it names the query that it replaces. Its batches start
            # at 0.
            batch, queries = 0, queries + 1
        while not done:
            source = QuerySource(query=f"{name}-{queries}", run=f"{name}-{rng.randrange(1 << 30)}", replaces=replaces)
            group = history.group(f"{name}.{queries}.{batch}.{len(attempts)}")
            attempts.append(group)
            try:
                txns = [await _fill(env, segments, group, part, rng) for part in range(rng.randrange(1, 3))]
                history.deciding(group)
                won = await env.controller.batches.commit(
                    STREAM, writer=name, batch=batch, transactions=[item.id for item in txns], source=source
                )
            except StreamSealedError:
                return
            except WriterInUseError as error:
                replaces = str(error.fields.get("owner", ""))
                history.decided(group, Outcome.FAILED)
                continue
            except RETRYABLE as error:
                history.note(f"batch {group.name} is unknown: {error}")
                if group.decided_s is None:
                    history.decided(group, Outcome.FAILED)
                continue
            except (TransactionNotFoundError, NotFoundError) as error:
                history.note(f"batch {group.name} expired: {error}")
                history.decided(group, Outcome.FAILED)
                continue
            done = True
            others = [item for item in attempts[:-1] if item.outcome is Outcome.UNKNOWN]
            history.decided(group, Outcome.OK if won else Outcome.FAILED)
            for other in others:
                if won:
                    history.decided(other, Outcome.FAILED)
                elif len(others) == 1:
                    history.decided(other, Outcome.OK)
            if not won and not others:
                history.violation("batch refused", f"{group.name} was refused, though no other batch was committed")
        batch += 1
        await env.pause(rng, factor=5)


async def _fill(env: Env, segments: SegmentService, group: Group, part: int, rng: random.Random) -> Transaction:
    """An open transaction with events in one or more of its segments. Raises NotFoundError once it has expired."""
    txn = await env.insist(lambda: env.controller.transactions.create(STREAM, lease_ms=30_000))
    for place, item in enumerate(txn.segments):
        if rng.random() < 0.7 or place == 0:
            name = transaction_segment_name(segment_name(STREAM, item.segment), txn.id)
            if rng.random() < 0.4:
                await _import(env, segments, name, group, f"{group.name}.{part}.{place}.i", rng)
            writer = RawWriter(env, segments, name, f"{group.name}.{part}.{place}", rng)
            for _ in range(rng.randrange(1, 4)):
                await writer.append(stream=str(STREAM), group=group, give_up=False)
    return txn


async def _import(env: Env, segments: SegmentService, name: str, group: Group, writer: str, rng: random.Random) -> None:
    """Chunks written directly to tier 2 by several attempts, one of which is adopted. Raises NotFoundError."""
    if not isinstance(segments, ChunkImports):
        raise InternalError("a simulated store does not adopt chunks")
    events = [
        env.history.write(str(STREAM), writer, number, "k", data, group=group, piece=name)
        for number in range(1, rng.randrange(2, 5))
        for data in (event(env.config, str(STREAM), writer, number, "k", rng),)
    ]
    chunks: list[ImportedChunk] | None = None
    for _ in range(rng.randrange(1, 3)):
        chunks = await write_chunks(env, segments, name, [item.data for item in events], rng) or chunks
    while chunks is None:
        await env.pause(rng, factor=0.3)
        chunks = await write_chunks(env, segments, name, [item.data for item in events], rng)
    await env.insist(partial(segments.adopt_chunks, name, 0, chunks))
    for item in events:
        env.history.acknowledged(item)


# --- reading ------------------------------------------------------------------------------------------------------


async def audit_stream(env: Env, reading: Reading) -> None:
    """Read everything once from the beginning to the seal, and acknowledge it as a subscriber."""
    rng = env.rng("auditor")
    store = env.store("auditor")
    start: StreamCut | None = env.acknowledged
    lives = 0
    while True:
        reader = store.stream(STREAM).reader(start=start)
        lives += 1
        try:
            async with reader:
                if await _audit(env, reader, reading, Windows(env, f"auditor.{lives}"), rng):
                    reading.complete = True
                    return
        except TruncatedError as error:
            env.history.violation("truncated past a subscriber", str(error))
            return
        except RETRYABLE as error:
            env.history.note(f"auditor starts anew: {error}")
            await asyncio.sleep(0.5)
        start = reader.position()


async def _audit(env: Env, reader: AsyncReader, reading: Reading, windows: Windows, rng: random.Random) -> bool:
    """Returns whether the end was reached."""
    while (block := await reader.next_block()) is not None:
        for item in block:
            env.history.read(reading, segment_name(STREAM, item.segment), item.offset, item.data)
            windows.read(item.data)
        await windows.look(reader)
        if rng.random() < 0.3:
            cut = reader.position()
            try:
                await env.controller.subscribers.publish(_FULL_NAME, group_id=None, generation=None, cut=cut)
            except RETRYABLE:
                continue
            except InvalidCutError as error:
                # A publication with a lost answer may be later than this cut. Otherwise our cuts never go back.
                env.history.violation("cut refused", str(error))
            env.acknowledged = cut
            env.history.note(f"acknowledged {dict(cut.positions)}")
    return True


async def reread_stream(env: Env, name: str) -> None:
    """Readers that begin at the current head, read for a while, and stop."""
    rng = env.rng(name)
    store = env.store(name)
    count = 0
    while not env.stopping.is_set():
        count += 1
        reading = env.history.reading(str(STREAM), f"{name}.{count}", skips=True)
        reader = store.stream(STREAM).reader(on_truncated="skip")
        try:
            async with asyncio.timeout(min(env.config.think_s * 20, 60.0) * rng.random() + 0.1), reader:
                while (block := await reader.next_block()) is not None:
                    for item in block:
                        env.history.read(reading, segment_name(STREAM, item.segment), item.offset, item.data)
        except (TimeoutError, *RETRYABLE):
            await env.pause(rng, factor=5)


async def reread_to_end(env: Env) -> None:
    """At the end: read everything from the head once more."""
    controller = env.controller
    head = await env.insist(lambda: controller.cuts.head(STREAM))
    tail = await env.insist(lambda: controller.cuts.tail(STREAM))
    between = await env.insist(lambda: controller.cuts.segments_between(STREAM, head, tail))
    reading = env.history.reading(str(STREAM), "final")
    reading.start = {segment_name(STREAM, item): max(0, offset) for item, offset in head.positions.items()}
    reading.segments = [segment_name(STREAM, item) for item in between]
    async with env.store("final").stream(STREAM).reader(start=head) as reader:
        while (block := await reader.next_block()) is not None:
            for item in block:
                env.history.read(reading, segment_name(STREAM, item.segment), item.offset, item.data)
    reading.final = True


# --- control ------------------------------------------------------------------------------------------------------


async def scale_stream(env: Env, name: str) -> None:
    """Split and merge segments at random."""
    rng = env.rng(name)
    while not env.stopping.is_set():
        await env.pause(rng, factor=20)
        try:
            current = await env.controller.layout.current(STREAM)
            plan = _plan(current, rng)
            if plan is not None:
                sealed, ranges = plan
                result = await env.controller.layout.scale(
                    STREAM, sealed=[item.segment for item in sealed], new_ranges=ranges
                )
                env.history.note(f"scaled {[item.segment for item in result.segments]}")
        except StreamSealedError:
            return
        except (ConflictError, InvalidArgumentError, *RETRYABLE) as error:
            env.history.note(f"scale failed: {error}")


def _plan(current: Sequence[SegmentRange], rng: random.Random) -> tuple[list[SegmentRange], list[KeyRange]] | None:
    if not current:
        return None
    ordered = sorted(current, key=lambda item: item.keys.low)
    if len(ordered) > 1 and (len(ordered) >= _SEGMENTS_MAX or rng.random() < 0.5):
        first = rng.randrange(len(ordered) - 1)
        pair = ordered[first : first + 2]
        return pair, [KeyRange(low=pair[0].keys.low, high=pair[1].keys.high)]
    one = ordered[rng.randrange(len(ordered))]
    middle = (one.keys.low + one.keys.high) / 2
    return [one], [KeyRange(low=one.keys.low, high=middle), KeyRange(low=middle, high=one.keys.high)]


async def truncate_stream(env: Env, name: str) -> None:
    """Truncate at the cut that the subscriber has acknowledged, and check that the head never moves back."""
    rng = env.rng(name)
    while not env.stopping.is_set():
        await env.pause(rng, factor=10)
        cut = env.acknowledged
        try:
            if cut is not None and rng.random() < 0.3:
                await env.controller.streams.truncate(STREAM, cut)
                env.history.note(f"truncated {dict(cut.positions)}")
            head = await env.controller.cuts.head(STREAM)
            env.history.head(str(STREAM), head.positions)
        except RETRYABLE:
            continue
        except (InvalidCutError, RetentionHoldError, StreamSealedError) as error:
            env.history.note(f"truncation refused: {error}")


async def live_streams(env: Env, name: str) -> None:
    """Create, seal and delete streams. Later queries must show the acknowledged changes."""
    rng, history = env.rng(name), env.history
    count = 0
    while not env.stopping.is_set():
        count += 1
        stream = StreamName(SCOPE, f"{name}-{count}")
        subject = f"stream {stream}"
        await env.insist(partial(_create_stream, env, stream))
        history.fact(subject, "created")
        await env.pause(rng, factor=5)
        await _look_at_stream(env, stream, subject)
        await env.insist(partial(env.controller.streams.seal, stream))
        history.fact(subject, "sealed")
        await env.pause(rng, factor=5)
        await _look_at_stream(env, stream, subject)
        history.fact(subject, "deleting")
        await env.insist(partial(_delete_stream, env, stream))
        history.fact(subject, "deleted")
        await env.pause(rng, factor=5)
        await _look_at_stream(env, stream, subject)


async def _create_stream(env: Env, stream: StreamName) -> None:
    try:
        await env.controller.streams.create(stream, StreamConfig())
    except AlreadyExistsError:
        env.history.note(f"stream exists {stream}")


async def _delete_stream(env: Env, stream: StreamName) -> None:
    try:
        await env.controller.streams.delete(stream)
    except NotFoundError:
        env.history.note(f"stream is gone {stream}")


async def _look_at_stream(env: Env, stream: StreamName, subject: str) -> None:
    begun = env.loop.time()
    try:
        exists = await env.controller.streams.exists(stream)
        is_sealed = exists and not await env.controller.layout.current(stream)
    except RETRYABLE:
        return
    except NotFoundError:
        exists = is_sealed = False
    env.history.sight(subject, begun, exists=exists, sealed=is_sealed)


async def finish_stream(env: Env) -> None:
    """Seal the stream, so that its readers end."""
    try:
        await env.insist(lambda: env.controller.streams.seal(STREAM))
    except PenstockError as error:
        env.history.violation("seal failed", str(error))
