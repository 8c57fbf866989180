"""Users of the control plane: replaced policies, a recreated stream, leases, damaged records, and tables.

Each actor checks one promise and reports a violation if it is broken.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any
from uuid import UUID

from penstock.client.retry import RETRYABLE
from penstock.codec.control.streams import HeadRecord, StreamRecord, StreamState
from penstock.codec.events import frame_events
from penstock.controller import keys
from penstock.model.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    ConflictError,
    InvalidCutError,
    NotFoundError,
    PenstockError,
    QuotaHeldError,
    ScaleConflictError,
    SegmentNotFoundError,
    SegmentSealedError,
    TransactionNotFoundError,
    TransactionStateError,
    WriterFencedError,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import StreamConfig
from penstock.model.retention import Idle, PolicyDocument, Retain, Unsubscribed
from penstock.model.segments import SegmentId, even_ranges
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.transactions import PingStatus, TransactionStatus
from penstock.ports.data.segments import Append
from penstock.ports.data.tables import KEY_ABSENT, TableLength, TablePut
from penstock.testing.simulation.actors import Env, cancel, until_served

PATIENCE_S = 60.0
"""Seconds of service within which a repeated call must succeed despite crashes and delays."""

POLICIES, REMADE, LEASED, ROTTEN, RACED = "policies", "remade", "leased", "rotten", "raced"
SCOPES = (POLICIES, REMADE, LEASED, ROTTEN, RACED)
POLICED = tuple(StreamName(POLICIES, name) for name in ("one", "two", "three"))
AGAIN = StreamName(REMADE, "stream")
HELD = StreamName(LEASED, "stream")
_KEEPS = PolicyDocument(retain=Retain(min_bytes=1 << 40, max_bytes=None), idle=Idle(stream_s=None))
_REMOVES = (
    PolicyDocument(retain=Retain(min_bytes=0, max_bytes=10), unsubscribed=Unsubscribed.RELEASE),
    PolicyDocument(retain=Retain(min_bytes=0), unsubscribed=Unsubscribed.RELEASE),
    PolicyDocument(idle=Idle(stream_s=1)),
)


@dataclass(slots=True)
class Seen:
    """What the actors of one run did, and what must be true at its end."""

    counts: dict[str, int] = field(default_factory=dict)
    abandoned: list[UUID] = field(default_factory=list)
    """Transactions that are no longer renewed: they must be aborted."""
    decisions: dict[str, int] = field(default_factory=dict)
    """Number of policies that were certainly set for each stream, numbered from 1."""

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


async def prepare(env: Env) -> None:
    """Create scopes whose streams no rule changes, unless an actor sets one."""
    for scope in SCOPES:
        await make_scope(env, scope)
    for name in (*POLICED, HELD):
        await make_stream(env, name)


async def make_scope(env: Env, scope: str) -> None:
    try:
        await env.insist(partial(env.controller.scopes.create, scope))
    except AlreadyExistsError:
        env.history.note(f"scope {scope} was created by a lost attempt")
    await env.insist(partial(env.controller.policies.set, scope, _KEEPS))


async def make_stream(env: Env, name: StreamName) -> None:
    """Create the stream unless it exists."""
    try:
        await env.insist(partial(env.controller.streams.create, name, StreamConfig()))
    except AlreadyExistsError:
        env.history.note(f"{name} is there")


async def must_end(env: Env, what: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat ``work`` until it is answered. Reports a violation if that takes too long."""
    answer = asyncio.ensure_future(env.insist(work))
    try:
        if await until_served(env, answer.done, PATIENCE_S):
            return answer.result()
    finally:
        await cancel([answer])
    env.history.violation("stuck", f"{what} did not succeed within {PATIENCE_S:.0f} s of service")
    return None


class Appender:
    """One writer that appends single events to segments by name. Repeats each until its outcome is known."""

    def __init__(self, env: Env, rng: random.Random) -> None:
        self._env = env
        self._rng = rng
        self._id = UUID(int=rng.getrandbits(128), version=4)
        self._number = 0

    async def append(self, segment: str, data: bytes) -> int | None:
        """The end offset of the event. None: it is not stored."""
        self._number += 1
        number, framed, local = self._number, frame_events([data]), self._env.cluster.local
        while True:
            try:
                last = await local.setup_append(segment, self._id)
                if last >= number:
                    return (await local.info(segment)).length
                request = Append(segment=segment, writer=self._id, data=framed, event_number=number, previous=last)
                return (await local.append(request)).end_offset
            except (QuotaHeldError, SegmentSealedError, SegmentNotFoundError, WriterFencedError):
                return None
            except RETRYABLE:
                await asyncio.sleep(0.2)


async def write_some(env: Env, stream: StreamName, writer: Appender, rng: random.Random) -> dict[bytes, None]:
    """Append some events to every segment; returns those that are stored."""
    stored: dict[bytes, None] = {}
    for item in await env.insist(partial(env.controller.layout.current, stream)):
        for _ in range(rng.randrange(1, 4)):
            data = rng.randbytes(20)
            if await writer.append(segment_name(stream, item.segment), data) is not None:
                stored[data] = None
    return stored


# --- policies that are replaced -----------------------------------------------------------------------------------


Fate = tuple[bool, dict[SegmentId, int]]
"""Whether the stream is recorded as ending or deleted, and its recorded head."""


async def replace_policies(env: Env, seen: Seen, name: str) -> None:
    """Set a policy that deletes data, and replace it while cycles apply it. From then on nothing may be deleted."""
    rng = env.rng(name)
    writer = Appender(env, rng)
    while not env.stopping.is_set():
        target = rng.choice((POLICIES, None))
        # The scope's policy hides the server's.
        await env.insist(partial(env.controller.policies.set, None, _KEEPS))
        await env.insist(partial(env.controller.policies.set, POLICIES, PolicyDocument() if target is None else _KEEPS))
        for stream in POLICED:
            await make_stream(env, stream)
            await _write_some(env, writer, stream, rng)
        await env.pause(rng, factor=2)
        await _replace_one(env, seen, target, rng)


async def _write_some(env: Env, writer: Appender, stream: StreamName, rng: random.Random) -> None:
    try:
        segments = await env.insist(partial(env.controller.layout.current, stream))
    except NotFoundError:
        return
    for item in segments:
        for _ in range(rng.randrange(1, 4)):
            await writer.append(segment_name(stream, item.segment), rng.randbytes(20))


async def _replace_one(env: Env, seen: Seen, target: str | None, rng: random.Random) -> None:
    controller = env.controller
    await env.insist(partial(controller.policies.set, target, rng.choice(_REMOVES)))
    await asyncio.sleep(rng.choice((0.0, 0.05, 1.2)) * rng.random())
    cycles = [asyncio.ensure_future(_cycle(env, stream)) for stream in POLICED]
    await asyncio.sleep(rng.choice((0.0, 0.02, 0.2)) * rng.random())
    await env.insist(partial(controller.policies.set, target, _KEEPS))
    before = await _fates(env)
    await asyncio.gather(*cycles)
    await asyncio.sleep(2 * rng.random())
    after = await _fates(env)
    seen.count("policies replaced")
    for stream, (was_ending, head), (is_ending, later) in zip(POLICED, before, after, strict=True):
        if was_ending:
            seen.count("streams deleted by rule")
        elif is_ending:
            env.history.violation("deleted by a replaced policy", f"{stream} of {target}")
        elif head != later:
            env.history.violation("truncated by a replaced policy", f"{stream} of {target} from {head} to {later}")
        if head:
            seen.count("heads moved")


async def _cycle(env: Env, stream: StreamName) -> None:
    try:
        await env.controller.retention.run(stream)
    except (NotFoundError, ConflictError, *RETRYABLE) as error:
        env.history.note(f"cycle of {stream} failed: {error}")


async def _fates(env: Env) -> list[Fate]:
    wanted = [key for stream in POLICED for key in (keys.stream(stream), keys.head(stream))]
    entries = await env.insist(partial(env.cluster.local.table_get, keys.TABLE, wanted))
    return [_fate(entries[place], entries[place + 1]) for place in range(0, len(entries), 2)]


def _fate(stream: Any, head: Any) -> Fate:
    if stream.version == KEY_ABSENT:
        return True, {}
    state = StreamRecord.decode(stream.value).state
    moved = {} if head.version == KEY_ABSENT else dict(HeadRecord.decode(head.value).visible)
    return state in (StreamState.SEALING, StreamState.DELETING), moved


# --- a stream that is recreated -----------------------------------------------------------------------------------


async def remake_stream(env: Env, seen: Seen, name: str) -> None:
    """Create, scale, truncate, seal and delete a stream repeatedly. Each step must succeed every time."""
    rng = env.rng(name)
    while not env.stopping.is_set():
        await _live_once(env, rng, ends=True)
        seen.count("streams made again")
    await _live_once(env, rng, ends=False)


async def _live_once(env: Env, rng: random.Random, *, ends: bool) -> None:
    controller = env.controller
    await must_end(env, "creation", partial(make_stream, env, AGAIN))
    await env.pause(rng, factor=0.1)
    for _ in range(rng.randrange(3)):
        await must_end(env, "scaling", partial(_scale, env, rng))
        await env.pause(rng, factor=0.1)
    if rng.random() < 0.4:
        await must_end(env, "truncation", partial(_truncate, env))
    await must_end(env, "sealing", partial(controller.streams.seal, AGAIN))
    await must_end(env, "deletion", partial(_delete, env))


async def _scale(env: Env, rng: random.Random) -> None:
    current = await env.controller.layout.current(AGAIN)
    ranges = even_ranges(1 if len(current) > 1 else rng.choice((2, 3)))
    try:
        await env.controller.layout.scale(AGAIN, sealed=[item.segment for item in current], new_ranges=ranges)
    except ScaleConflictError as error:
        env.history.note(f"scale lost a race: {error}")


async def _truncate(env: Env) -> None:
    try:
        await env.controller.streams.truncate(AGAIN, await env.controller.cuts.tail(AGAIN))
    except InvalidCutError as error:
        env.history.note(f"truncation came late: {error}")


async def _delete(env: Env) -> None:
    try:
        await env.controller.streams.delete(AGAIN)
    except NotFoundError:
        env.history.note("stream is gone already")


async def begin_in_stream(env: Env, seen: Seen, name: str) -> None:
    """Begin transactions in a stream that may be deleted at any moment; commit, abort or abandon them."""
    rng = env.rng(name)
    controller = env.controller
    while not env.stopping.is_set():
        try:
            txn = await controller.transactions.create(AGAIN, lease_ms=10_000)
            seen.count("transactions begun")
            fate = rng.random()
            if fate < 0.5:
                await controller.transactions.commit(AGAIN, txn.id)
            elif fate < 0.8:
                await controller.transactions.abort(AGAIN, txn.id)
        except (NotFoundError, ConflictError, *RETRYABLE) as error:
            env.history.note(f"{name}: {error}")
        await env.pause(rng, factor=0.1)


# --- leases -------------------------------------------------------------------------------------------------------


async def hold_transactions(env: Env, seen: Seen, name: str) -> None:
    """Keep transactions open for part of their lease. None may end before its lease, even if clocks jump."""
    rng = env.rng(name)
    while not env.stopping.is_set():
        begun_s = env.loop.time()
        lease_s = rng.choice((10.0, 15.0, 30.0))
        txn = (await env.insist(partial(env.controller.transactions.create, HELD, lease_ms=int(lease_s * 1000)))).id
        seen.count("leases")
        until_s = begun_s + lease_s
        if rng.random() < 0.3:
            await asyncio.sleep(lease_s * 0.8 * rng.random())
            until_s = await _renew(env, txn, until_s, lease_s)
        await asyncio.sleep(max(0.0, (until_s - env.loop.time()) * rng.random()))
        await _still_open(env, txn, until_s)
        if rng.random() < 0.5:
            seen.abandoned.append(txn)
        else:
            await _commit_in_time(env, txn, until_s)


async def _renew(env: Env, txn: UUID, until_s: float, lease_s: float) -> float:
    asked_s = env.loop.time()
    found = await env.insist(partial(env.controller.transactions.ping, HELD, txn, lease_ms=int(lease_s * 1000)))
    if found is PingStatus.OK:
        return asked_s + lease_s
    if env.loop.time() < until_s:
        env.history.violation(
            "lease ended early", f"{txn} {found.value} {until_s - env.loop.time():.3f} s before its end"
        )
    return until_s


async def _still_open(env: Env, txn: UUID, until_s: float) -> None:
    found = await env.insist(partial(env.controller.transactions.status, HELD, txn))
    if env.loop.time() < until_s and found is not TransactionStatus.OPEN:
        env.history.violation(
            "lease ended early", f"{txn} {found.value} {until_s - env.loop.time():.3f} s before its end"
        )


async def _commit_in_time(env: Env, txn: UUID, until_s: float) -> None:
    try:
        await env.insist(partial(env.controller.transactions.commit, HELD, txn))
    except (TransactionStateError, TransactionNotFoundError) as error:
        if env.loop.time() < until_s:
            env.history.violation("commit refused within its lease", f"{txn} {error}")


async def check_abandoned(env: Env, seen: Seen) -> None:
    """Called a while after the last fault: each abandoned transaction has been aborted."""
    for txn in seen.abandoned:
        found = await env.insist(partial(env.controller.transactions.status, HELD, txn))
        if found not in (TransactionStatus.ABORTED, TransactionStatus.ABORTING):
            env.history.violation("lease never ends", f"{txn} {found.value}")


# --- records that cannot be read ----------------------------------------------------------------------------------


async def damage_records(env: Env, seen: Seen, name: str) -> None:
    """Leave unreadable records of an unused stream and an unused scope. No other call may be affected."""
    rng = env.rng(name)
    victim = StreamName(ROTTEN, "stream")
    while not env.stopping.is_set():
        await env.pause(rng, factor=10)
        txn = UUID(int=rng.getrandbits(128), version=4)
        key = rng.choice(
            (
                keys.transaction(victim, txn),
                keys.transactions(victim) + b"no transaction",
                keys.queue_entry(victim, rng.randrange(10)),
                keys.hold(ROTTEN, f"h{rng.randrange(10)}"),
                keys.completions(victim) + rng.randbytes(5),
            )
        )
        put = TablePut(key=key, value=rng.randbytes(rng.randrange(1, 40)))
        await env.insist(partial(env.cluster.local.table_update, keys.TABLE, [put]))
        env.history.note(f"damaged {key!r}")
        seen.count("records damaged")


# --- concurrent changes of a table --------------------------------------------------------------------------------


async def race_in_table(env: Env, seen: Seen, name: str) -> None:
    """Several changes that all expect the same length of a table: at most one may succeed."""
    rng, local, table = env.rng(name), env.cluster.local, f"{RACED}/table"
    try:
        await env.insist(partial(local.create_table, table))
    except AlreadyExistsError:
        env.history.note(f"{table} was created by a lost attempt")
    while not env.stopping.is_set():
        info, _, _ = await env.insist(partial(local.table_info, table))
        made = await asyncio.gather(*(_change_at(env, table, info.length, number) for number in range(5)))
        if sum(made) > 1:
            env.history.violation("condition ignored", f"{sum(made)} changes of {table}, which has {info.length} bytes")
        seen.count("races")
        await env.pause(rng)


async def _change_at(env: Env, table: str, length: int, number: int) -> bool:
    """Whether the change certainly happened."""
    changes: Sequence[TablePut | TableLength] = (
        TablePut(key=b"key%d" % number, value=b"%d" % length),
        TableLength(length=length),
    )
    try:
        await env.cluster.local.table_update(table, changes)
    except ConditionFailedError:
        return False
    except RETRYABLE:
        return False
    except PenstockError as error:
        env.history.violation("table change failed", f"{table} {error}")
        return False
    return True
