"""``python -m tests.crash.upgrade REVISION``: what an older Penstock has stored, opened by this one after a ``kill -9``.

A server of that revision fills a data directory: streams with several epochs, truncated, sealed, deleted; transactions
that are open, committed and aborted; reader groups in their middle; holds, policies, subscribers, erasures with receipts.
Its own client notes all that it can see. The server is killed, and this revision's server must show the same. Then what
was open goes on. At the end the older revision is started on the directory again, which works or is refused in words.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import penstock
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.testing.server import ServerProcess

_ROOT = Path(__file__).resolve().parents[2]
_SCOPES = ("up", "more")
_READ_BY_GROUP = 150

Picture = dict[str, Any]


# --- run by the older revision --------------------------------------------------------------------------------------


def fill(address: str) -> Picture:
    """Fill the store; returns what a client has to know to go on."""
    with penstock.connect(address) as store:
        for scope in _SCOPES:
            store.create_scope(scope)
        plain = store.create_stream("up/plain", segments=2, tags=["t1", "t2"])
        _write(plain, 0, 300)
        plain.scale(segments=4)
        _write(plain, 300, 600)
        plain.scale(segments=2)
        _write(plain, 600, 700)
        with plain.reader() as reader:
            for _ in range(100):
                reader.read(timeout_s=10)
            middle = reader.position()
        group = store.reader_group("readers", ["up/plain"], retention="manual")
        with group.reader("one") as reader:
            for _ in range(_READ_BY_GROUP):
                reader.read(timeout_s=10)
        held = store.holds(plain.name).add(owner="legal", reason="case 7", cut=middle)
        committed, aborted, left = (plain.transaction(lease_s=600) for _ in range(3))
        for place, transaction in enumerate((committed, aborted, left)):
            transaction.open()
            for number in range(10):
                transaction.write(f"t{place}:{number}", key=f"t{place}")
            transaction.flush()
        committed.commit()
        aborted.abort()

        cut = store.create_stream("up/truncated", segments=2)
        _write(cut, 0, 200)
        with cut.reader() as reader:
            for _ in range(80):
                reader.read(timeout_s=10)
            cut.truncate(reader.position())
        cut.retention.set({"retain": {"min_bytes": 1_000_000}})
        store.policy("more").set({"retain": {"min_age_s": 86_400}})

        erased = store.create_stream("up/erased")
        _write(erased, 0, 100)
        with erased.reader(until_tail=True) as reader:
            events = list(reader)
        receipts = [
            erased.erase(events[place::30], who="dpo", why="request", erasure=f"erasure-{place}") for place in (1, 2)
        ]

        sealed = store.create_stream(
            "more/sealed", segments=3, retention=RetentionPolicy(type=RetentionType.SIZE, minimum=1000)
        )
        _write(sealed, 0, 100)
        sealed.seal()
        for name in ("gone", "back"):
            gone = store.create_stream(f"more/{name}")
            _write(gone, 0, 50)
            gone.delete(seal=True)
        store.holds("more").add(owner="ops", reason="migration")
        _write(plain, 700, 720)
        return {
            "open": str(left.id),
            "committed": str(committed.id),
            "aborted": str(aborted.id),
            "hold": held.id,
            "receipts": len(receipts),
        }


def _write(stream: penstock.Stream, begin: int, end: int) -> None:
    with stream.writer() as writer:
        for number in range(begin, end):
            writer.write(b"%d:" % number + bytes(number % 50), key=f"k{number % 11}")


# --- run by both ----------------------------------------------------------------------------------------------------


def look(address: str) -> Picture:
    """All that clients of both revisions can see, as JSON."""
    seen: Picture = {}
    with penstock.connect(address) as store:
        for scope in _SCOPES:
            seen[f"policy of {scope}"] = _policy(store.policy(scope))
            seen[f"groups of {scope}"] = [name.rpartition("/")[2] for name in store.reader_groups(scope)]
            seen[f"holds of {scope}"] = [
                [hold.id, hold.owner, hold.reason, str(hold.cut)] for hold in store.holds(scope)
            ]
            for name in store.streams(scope):
                seen[f"{scope}/{name}"] = _look_at(store, f"{scope}/{name}")
            for tag in ("t1", "t2", "t3"):
                seen[f"{tag} in {scope}"] = list(store.streams(scope, tag=tag))
        seen["policy"] = _policy(store.policy())
        seen["deleted"] = [
            [str(item.stream), item.incarnation, item.rule, item.size_bytes] for item in store.deleted_streams()
        ]
        group = store.open_reader_group("up/readers")
        seen["group"] = {"streams": [str(item) for item in group.streams], "readers": list(group.readers())}
    return seen


def _look_at(store: penstock.Store, name: str) -> Picture:
    stream = store.stream(name)
    found = stream.describe()
    config = found.config
    digest, count = hashlib.sha256(), 0
    with stream.reader(until_tail=True) as reader:
        lines = sorted((event.segment, event.offset, event.data.hex()) for event in reader)
    for line in lines:
        digest.update(repr(line).encode())
        count += 1
    return {
        "epoch": found.epoch,
        "sealed": found.sealed,
        "segments": [[item.segment, item.keys.low, item.keys.high] for item in found.segments],
        "head": str(found.head),
        "tail": str(found.tail),
        "bytes": [found.size_bytes, found.written_bytes],
        "subscribers": [[item.name, item.generation, str(item.cut), item.lag_bytes] for item in found.subscribers],
        "held_by": found.held_by,
        "scaling": [config.scaling.type.name, config.scaling.min_segments, config.scaling.target_rate],
        "retention": str(config.retention),
        "tags": list(config.tags),
        "policy": _policy(stream.retention),
        "holds": [[hold.id, str(hold.cut)] for hold in store.holds(stream.name)],
        "erasures": [_erasure(stream, item) for item in stream.erasures],
        "events": [count, digest.hexdigest()],
    }


def _erasure(stream: penstock.Stream, item: Any) -> Any:
    name = item["erasure"] if isinstance(item, Mapping) else item.erasure
    found = stream.erasures.verify(name)
    return [name, json.loads(json.dumps(found.receipt, default=str)), list(found.problems)]


def _policy(level: Any) -> str:
    return repr(level.get())


# --- the comparison -------------------------------------------------------------------------------------------------


def go_on(address: str, known: Mapping[str, Any]) -> list[str]:
    """What was open goes on: the transaction, the group, the writers, the deleted stream. Returns what is wrong."""
    wrong: list[str] = []

    def expect(what: str, found: object, wanted: object) -> None:
        if found != wanted:
            wrong.append(f"{what}: {found!r}, expected {wanted!r}")

    with penstock.connect(address) as store:
        plain = store.stream("up/plain")

        async def states(inner: penstock.AsyncStore) -> list[str]:
            calls = inner.controller.transactions
            return [
                (await calls.status(StreamName("up", "plain"), UUID(known[what]))).name
                for what in ("open", "committed", "aborted")
            ]

        expect("transactions", store.call(states), ["OPEN", "COMMITTED", "ABORTED"])
        expect("open transactions", [str(item.id) for item in plain.open_transactions()], [known["open"]])
        before = len(_all(plain))

        async def commit(inner: penstock.AsyncStore) -> None:
            await inner.controller.transactions.commit(StreamName("up", "plain"), UUID(known["open"]))

        store.call(commit)
        until_s = time.monotonic() + 30
        while len(_all(plain)) < before + 10 and time.monotonic() < until_s:
            time.sleep(0.1)
        events = _all(plain)
        expect("events of the open transaction", [item for item in events if item.startswith(b"t2")], _TRANSACTION)
        found: list[bytes] = []
        group = store.open_reader_group("up/readers")
        with group.reader("two") as reader:
            while (event := reader.read(timeout_s=5)) is not None:
                found.append(event.data)
        # The group had read so many, and committed them when its reader left.
        expect("rest of the group", len(found), len(events) - _READ_BY_GROUP)
        expect("rest is of the stream", set(found) <= set(events), True)
        _write(plain, 720, 730)
        plain.scale(segments=3)
        expect("written on", len(_all(plain)), len(events) + 10)
        try:
            plain.truncate(plain.tail())
            wrong.append("a truncation passed the hold")
        except penstock.errors.RetentionHoldError:
            pass
        store.restore_stream("more/back")
        expect("restored", len(_all(store.stream("more/back"))), 50)
        store.holds(plain.name).release(known["hold"], owner="legal")
        plain.truncate(plain.tail())
        expect("truncated", len(_all(plain)), 0)
        # What the older revision does not know.
        with plain.writer() as writer:
            writer.write(b"late", key="k")
            writer.note_time(1000)
        store.create_table("up/table", primary_key_bytes=4).put(b"abcd", b"x")
        plain.update(scaling=penstock.ScalingPolicy(type=penstock.ScaleType.EVENTS_PER_S, target_rate=100, factor=2))
    return wrong


_TRANSACTION = [b"t2:%d" % number for number in range(10)]


def _all(stream: penstock.Stream) -> list[bytes]:
    with stream.reader(until_tail=True) as reader:
        return [event.data for event in reader]


def _differences(before: Picture, after: Picture, path: str = "") -> list[str]:
    found: list[str] = []
    for key in {**before, **after}:
        one, other = before.get(key), after.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found += _differences(one, other, f"{path}{key}: ")
        elif one != other:
            found.append(f"{path}{key}: {one!r} has become {other!r}")
    return found


def _older(tree: Path, call: str, address: str) -> Any:
    """The answer of ``fill`` or ``look``, from the client of the older revision."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    command = [sys.executable, str(Path(__file__)), "--call", call, address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{call} by the older revision failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def upgrade(tree: Path, data: Path, options: list[str]) -> list[str]:
    """Returns what is wrong, a line each."""
    path = os.environ.get("PYTHONPATH")
    older, newer = ServerProcess(data, *options), ServerProcess(data, *options)
    os.environ["PYTHONPATH"] = str(tree / "src")
    try:
        older.start()
    finally:
        os.environ.pop("PYTHONPATH") if path is None else os.environ.update(PYTHONPATH=path)
    try:
        known = _older(tree, "fill", older.address)
        before = _older(tree, "look", older.address)
    finally:
        older.kill()
    with newer:
        wrong = _differences(before, json.loads(json.dumps(look(newer.address))))
        wrong += go_on(newer.address, known)
        newer.kill()
        newer.start()
        newer.stop()
    os.environ["PYTHONPATH"] = str(tree / "src")
    try:
        older.start()
        sys.stdout.write("the older revision opens the directory again\n")
        _older(tree, "look", older.address)
        sys.stdout.write("and its client sees it\n")
    except (penstock.errors.UnavailableError, SystemExit) as error:
        sys.stdout.write(f"the older revision refuses: {str(error)[-1500:]}\n")
    finally:
        older.kill()
        os.environ.pop("PYTHONPATH") if path is None else os.environ.update(PYTHONPATH=path)
    return wrong


def main() -> int:
    """1 where something is not as it was."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.upgrade", description=__doc__)
    parser.add_argument("revision", help="a commit of this repository")
    parser.add_argument("--workers", type=int, help="worker processes")
    parser.add_argument("--call", choices=("fill", "look"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.call is not None:
        sys.stdout.write(json.dumps({"fill": fill, "look": look}[chosen.call](chosen.revision)))
        return 0
    options = [] if chosen.workers is None else ["--workers", str(chosen.workers)]
    with tempfile.TemporaryDirectory(prefix="penstock-upgrade-") as name:
        tree = Path(name) / "tree"
        subprocess.run(["git", "clone", "-q", "--shared", str(_ROOT), str(tree)], check=True)
        subprocess.run(["git", "-C", str(tree), "checkout", "-q", chosen.revision], check=True)
        wrong = upgrade(tree, Path(name) / "data", options)
    for line in wrong:
        sys.stdout.write(f"{line}\n"[:600])
    sys.stdout.write(f"{chosen.revision} {' '.join(options)}: {len(wrong)} differences\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
