"""Random histories of erasure in a store that crashes, with backups of it: no backup may show an erased event.

``python tests/app/erasure_ledgers.py --runs 1000 --seed 1`` runs many and prints what they did.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.client.store import AsyncStore
from penstock.controller.controller import Controller
from penstock.controller.settings import ControllerSettings
from penstock.core.cases.ledger import Ledger, ledger_lines, ledger_of
from penstock.model.errors import ErasureDeferredError, PenstockError
from penstock.testing.fakes import FakeClock, SeededRng
from penstock.testing.world import World

STREAMS = ("s/a", "s/b", "r/c")
PEOPLE = 4
WHO = {"who": "ann", "why": "a test"}
KEY = bytes(range(32))
SETTINGS = ControllerSettings(sweep_ms=None, retention_cycle_ms=None, watermark_ms=None, erasure_key=KEY)


def copy_of(world: World, seed: int) -> World:
    """Another store from the state that a crash would leave now."""
    made = World(clock=FakeClock(), rng=SeededRng(seed), controller=SETTINGS)
    made.log_state, made.keyvalue, made.chunks = copy.deepcopy((world.log_state, world.keyvalue, world.chunks))
    return made


async def texts_of(store: AsyncStore, name: str) -> list[str]:
    async with store.stream(name).reader(until_tail=True) as reader:
        return [event.data.decode() async for event in reader]


@dataclass
class History:
    """One history. ``erased``: texts that a receipt covers, or that a verified case matched."""

    seed: int
    world: World = field(init=False)
    rng: Random = field(init=False)
    backups: list[World] = field(default_factory=list)
    erased: set[str] = field(default_factory=set)
    written: int = 0
    cases: dict[str, tuple[str, str]] = field(default_factory=dict)
    holds: list[str] = field(default_factory=list)
    open_txns: list[Any] = field(default_factory=list)
    did: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.world = World(clock=FakeClock(), rng=SeededRng(self.seed), controller=SETTINGS)

    def event(self) -> tuple[str, str]:
        self.written += 1
        person = f"p{self.rng.randrange(PEOPLE)}"
        return json.dumps({"user": person, "n": f"{self.seed}-{self.written}"}), person

    async def run(self) -> Ledger:
        """Several openings of the store, each with some steps and most with a crash at the end; then the ledger."""
        lives = self.rng.randrange(2, 4)
        ledger: Ledger | None = None
        for life in range(lives):
            async with self.world.serving(crash=self.rng.random() < 0.7) as (segments, controller):
                store = AsyncStore(segments, controller, self.world.clock, self.world.rng)
                if not life:
                    for name in STREAMS:
                        await store.create_stream(name, segments=2, create_scope=True, if_absent=True)
                self.open_txns.clear()
                for _ in range(self.rng.randrange(4, 12)):
                    await self.step(store, controller)
                await self.settle(store)
                for txn in self.open_txns:
                    await txn.abandon()
                ledger = ledger_of(ledger_lines(await store.cases().ledger()))
        assert ledger is not None
        return ledger

    async def step(self, store: AsyncStore, controller: Controller) -> None:
        steps = {
            self.append: 6, self.transact: 3, self.open_case: 2, self.look: 2, self.erase: 2,
            self.hold: 1, self.release: 2, self.backup: 3, self.scale: 1, self.close: 1,
        }  # fmt: skip
        (chosen,) = self.rng.choices([*steps], weights=[*steps.values()])
        self.did[chosen.__name__] += 1
        await chosen(store, controller)

    async def append(self, store: AsyncStore, _: Controller) -> None:
        async with store.stream(self.rng.choice(STREAMS)).writer() as writer:
            for _ in range(self.rng.randrange(1, 8)):
                text, person = self.event()
                await writer.write(text, key=person)

    async def transact(self, store: AsyncStore, _: Controller) -> None:
        """Begin a transaction, or end one. Some stay open over a backup, or over a crash."""
        if self.open_txns and self.rng.random() < 0.6:
            txn = self.open_txns.pop(self.rng.randrange(len(self.open_txns)))
            with suppress(PenstockError):
                ended = asyncio.ensure_future(txn.commit() if self.rng.random() < 0.8 else txn.abort())
                if self.rng.random() < 0.5:
                    # A backup that has the decision, and perhaps not what follows from it.
                    for _ in range(self.rng.randrange(60)):
                        await asyncio.sleep(0)
                    await self.backup()
                await ended
            return
        txn = store.stream(self.rng.choice(STREAMS)).transaction()
        await txn.open()
        text, person = self.event()
        await txn.write(text, key=person)
        await txn.flush()
        self.open_txns.append(txn)

    async def open_case(self, store: AsyncStore, _: Controller) -> None:
        case, person = f"c{len(self.cases)}", f"p{self.rng.randrange(PEOPLE)}"
        target = self.rng.choice(["s", "r", "*", "s/a"])
        field_of = self.rng.random() < 0.7
        values = [person] if field_of else [f'"user": "{person}"']
        await store.cases().open(
            target, values, json_field="user" if field_of else None, keep_values=not field_of, case=case, **WHO
        )
        self.cases[case] = (target, person)

    async def look(self, store: AsyncStore, _: Controller) -> None:
        if self.cases:
            await self.look_at(store, self.rng.choice([*self.cases]))

    async def look_at(self, store: AsyncStore, case: str) -> None:
        before = {name: await texts_of(store, name) for name in STREAMS}
        state = await store.cases().look(case)
        for name in STREAMS:
            after = set(await texts_of(store, name))
            self.erased.update(set(before[name]) - after)
        if state.state == "verified":
            target, person = self.cases[case]
            for name in STREAMS:
                if target in ("*", name, name[0]):
                    assert not [text for text in await texts_of(store, name) if json.loads(text)["user"] == person]

    async def erase(self, store: AsyncStore, _: Controller) -> None:
        """Erase some events by position."""
        stream = store.stream(self.rng.choice(STREAMS))
        async with stream.reader(until_tail=True) as reader:
            events = [event async for event in reader]
        if not events:
            return  # refused: it would prove nothing
        some = self.rng.sample(events, min(len(events), 3))
        with suppress(ErasureDeferredError):
            await stream.erase(some, **WHO)
            self.erased.update(event.data.decode() for event in some)

    async def hold(self, store: AsyncStore, _: Controller) -> None:
        name = f"h{self.did['hold']}"
        await store.holds(self.rng.choice(["s", "s/a", "r"])).add(owner="law", reason="a test", hold_id=name)
        self.holds.append(name)

    async def release(self, store: AsyncStore, controller: Controller) -> None:
        if self.holds:
            before = {name: await texts_of(store, name) for name in STREAMS}
            await store.holds().release(self.holds.pop(), owner="law")
            await controller.sweep()
            await self.settle(store)
            for name in STREAMS:
                self.erased.update(set(before[name]) - set(await texts_of(store, name)))

    async def close(self, store: AsyncStore, _: Controller) -> None:
        for case in self.cases:
            if (await store.cases().show(case)).state == "verified":
                before = {name: await texts_of(store, name) for name in STREAMS}
                with suppress(PenstockError):
                    await store.cases().close(case, **WHO)
                for name in STREAMS:
                    self.erased.update(set(before[name]) - set(await texts_of(store, name)))
                return

    async def scale(self, store: AsyncStore, _: Controller) -> None:
        await store.stream(self.rng.choice(STREAMS)).scale(self.rng.randrange(2, 5))

    async def backup(self, *_: object) -> None:
        self.backups.append(copy_of(self.world, self.rng.randrange(1 << 30)))

    async def settle(self, store: AsyncStore) -> None:
        """Wait for decided erasures: the ledger lists those that are done."""
        for item in await store.erasures().list():
            if item.state == "asked":
                before = {name: await texts_of(store, name) for name in STREAMS}
                await store.erasures().wait(item.erasure)
                for name in STREAMS:
                    self.erased.update(set(before[name]) - set(await texts_of(store, name)))


async def survivors(history: History, ledger: Ledger) -> Sequence[str]:
    """Erased events that some backup shows after a restore with the ledger."""
    found: list[str] = []
    for backup in history.backups:
        if history.rng.random() < 0.3:
            # The restore dies on the way, once.
            async with backup.serving(crash=True) as (_, controller):
                task = asyncio.ensure_future(controller.reapply_erasures(ledger))
                for _ in range(history.rng.randrange(40)):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        async with backup.serving() as (segments, controller):
            await controller.begin_restored(1 << 20)
            await controller.reapply_erasures(ledger)
            again = await controller.reapply_erasures(ledger)
            assert (again.erasures, again.events) == (0, 0), again
            store = AsyncStore(segments, controller, backup.clock, backup.rng)
            for scope in [scope for scope in await store.scopes() if scope in ("s", "r")]:
                for name in await store.streams(scope):
                    found += [text for text in await texts_of(store, f"{scope}/{name}") if text in history.erased]
    return found


async def check(seed: int) -> History:
    """One random history; raises AssertionError if a backup shows an erased event."""
    history = History(seed)
    ledger = await history.run()
    left = await survivors(history, ledger)
    assert not left, (seed, left)
    return history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    did: Counter[str] = Counter()
    for seed in range(given.seed, given.seed + given.runs):
        history = asyncio.run(check(seed))
        did += history.did
        did += Counter(erased_events=len(history.erased), cases=len(history.cases), written=history.written)
        if seed % 50 == 0:
            print(seed, dict(did), flush=True)
    print(f"{given.runs} histories from seed {given.seed}, no survivor: {dict(sorted(did.items()))}")


if __name__ == "__main__":
    main()
