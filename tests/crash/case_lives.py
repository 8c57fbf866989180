"""``python -m tests.crash.case_lives``: cases of erasure in a real server that is killed, and older backups with the ledger.

Each history writes events of a few persons, takes a backup of the running server, opens a case, and kills the server
(``kill -9``) at random moments of the search, the erasure and the proof, while further events arrive. The laws: once the
case is verified, no reader and no file of the store has an event of the person; all other acknowledged events are there;
and both hold for a store that is restored from the older backup with the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import penstock
from penstock.app.backup.restore import restore_backup
from penstock.app.backup.take import take_backup
from penstock.app.erasure.ledger import write_ledger
from penstock.model.answers.erasure import ErasureCase
from penstock.model.errors import PenstockError, UnavailableError
from penstock.testing.server import ServerProcess
from tests.crash.preloaded import PreloadedServer
from tests.crash.states import scratch

STREAMS = ("s/a", "s/b")
PEOPLE = 4
WHO = {"who": "ann", "why": "a test"}
_LOG = ("--log", "80MiB")
_KILLS = 3
_DELAY_MAX_S = 0.3
"""A search, an erasure and a proof of these streams take about as long."""
_VERIFY_S = 60.0


@dataclass(slots=True, kw_only=True)
class Result:
    """``anomalies``: a line for each promise broken. ``early``: kills before the case was verified."""

    histories: int = 0
    kills: int = 0
    early: int = 0
    erased: int = 0
    late: int = 0
    anomalies: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _History:
    seed: int
    place: Path
    result: Result
    kills: int
    rng: random.Random = field(init=False)
    written: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in STREAMS})
    """Texts of acknowledged events, by stream."""
    number: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    @property
    def target(self) -> str:
        return "person-0|"

    def write(self, store: penstock.Store, count: int) -> None:
        for name in STREAMS:
            with store.stream(name).writer() as writer:
                for _ in range(count):
                    self.number += 1
                    user = f"person-{self.rng.randrange(PEOPLE)}"
                    text = json.dumps({"user": user, "text": f"{self.number:06} {user}|"})
                    writer.write(text, key=str(self.rng.randrange(8)))
                    self.written[name].append(text)

    def run(self) -> None:
        data, rng = self.place / "data", self.rng
        with PreloadedServer(data, *_LOG) as server:
            with penstock.connect(server.address) as store:
                for name in STREAMS:
                    store.create_stream(name, segments=rng.randrange(1, 4), create_scope=True)
                self.write(store, rng.randrange(20, 200))
                store.audit().log()  # creates the key that signs the ledger: the backup must know it
            asyncio.run(take_backup(data, self.place / "backup"))
            at_backup = {name: list(texts) for name, texts in self.written.items()}
            with penstock.connect(server.address) as store:
                self.write(store, rng.randrange(1, 40))
                if rng.random() < 0.3:
                    store.stream(STREAMS[0]).scale(rng.randrange(3, 6))
                self.open_case(store)
            for _ in range(self.kills):
                self.one_kill(server)
            with penstock.connect(server.address) as store:
                found = self.verified(store)
                self.result.erased += found.events
                self.result.late += found.late
                self.expect(store, self.written, "the store")
                store.cases().close("c", who=WHO["who"], why=WHO["why"])
                write_ledger(self.place / "ledger", store.cases().ledger(with_values=True))
        self.expect_files(data, "the store")
        restored = self.place / "restored"
        asyncio.run(restore_backup(self.place / "backup", restored, ledger=self.place / "ledger"))
        with penstock.open(restored) as store:
            self.expect(store, at_backup, "the restored backup")
        self.expect_files(restored, "the restored backup")

    def open_case(self, store: penstock.Store) -> None:
        by_field = self.rng.random() < 0.6
        store.cases().open(
            "s",
            ["person-0" if by_field else self.target],
            json_field="user" if by_field else None,
            keep_values=not by_field or self.rng.random() < 0.3,
            case="c",
            who=WHO["who"],
            why=WHO["why"],
        )

    def verified(self, store: penstock.Store) -> ErasureCase:
        """The case after a pass that met no new event. Raises UnavailableError."""
        give_up_s = time.monotonic() + _VERIFY_S
        while (found := store.cases().look("c")).state != "verified":
            if time.monotonic() > give_up_s:
                raise UnavailableError("the case was not verified in time", state=found.state, cause=found.waits_for)
        return found

    def one_kill(self, server: ServerProcess) -> None:
        time.sleep(self.rng.random() ** 2 * _DELAY_MAX_S)
        server.kill()
        self.result.kills += 1
        server.start()
        with penstock.connect(server.address) as store:
            self.result.early += store.cases().show("c").state != "verified"
            if self.rng.random() < 0.7:
                self.write(store, self.rng.randrange(1, 20))

    def expect(self, store: penstock.Store, written: dict[str, list[str]], what: str) -> None:
        for name in STREAMS:
            with store.stream(name).reader(until_tail=True) as reader:
                found = sorted(event.data.decode() for event in reader)
            wanted = sorted(text for text in written[name] if self.target not in text)
            if left := [text for text in found if self.target in text]:
                self.anomaly(f"{what} shows erased events of {name}: {left[:3]}")
            elif found != wanted:
                self.anomaly(f"{what} has {len(found)} other events of {name} instead of {len(wanted)}")

    def expect_files(self, data: Path, what: str) -> None:
        needle = self.target.encode()
        for path in sorted(item for item in data.rglob("*") if item.is_file()):
            # A case that keeps its values has them in the metadata and its log, by design; its chunks are clean.
            if "chunks" in path.parts and needle in path.read_bytes():
                self.anomaly(f"{what} has erased bytes in {path.relative_to(data)}")

    def anomaly(self, text: str) -> None:
        self.result.anomalies.append(f"seed {self.seed}: {text}")


def run(seeds: Sequence[int], *, kills: int = _KILLS, disk: bool = False) -> Result:
    """One history for each seed."""
    result = Result()
    for seed in seeds:
        with tempfile.TemporaryDirectory(dir=None if disk else scratch(), prefix="penstock-cases-") as place:
            history = _History(seed, Path(place), result, kills)
            try:
                history.run()
            except PenstockError as error:
                history.anomaly(f"the history did not end: {error}")
        result.histories += 1
    return result


def main(argv: list[str] | None = None) -> int:
    """1 where any promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.case_lives", description=__doc__)
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--disk", action="store_true", help="on the disk of TMPDIR, not in memory")
    chosen = parser.parse_args(argv)
    began = time.monotonic()
    result = run(range(chosen.seed, chosen.seed + chosen.histories), disk=chosen.disk)
    for line in result.anomalies[:20]:
        sys.stdout.write(f"{line}\n"[-2000:])
    sys.stdout.write(
        f"{result.histories} histories, {result.kills} kills, {result.early} of them before the proof, "
        f"{result.erased} events erased, {result.late} of them late, {len(result.anomalies)} anomalies, "
        f"{time.monotonic() - began:.0f} s\n"
    )
    return 1 if result.anomalies else 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(main())
