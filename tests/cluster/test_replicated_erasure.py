"""Erasure in a store whose log is on BookKeeper: the bookies keep all entries, and nobody can read what was erased."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.app.replicated import log_keys
from penstock.codec.store.ledger_keys import DIRECTORY, decode_key_object
from penstock.core.cluster import ownership
from penstock.core.segments.erasure_receipt import receipt_problems
from penstock.model.errors import PenstockError, UnsupportedError
from penstock.model.ledgers import LogWipe
from penstock.storage.ledgers.keyring import Keyring
from penstock.storage.objects.ledger_keys import ObjectLedgerKeys
from penstock.testing.bookkeeper.bookies import SimBookKeeper
from penstock.testing.simulation.ledgers.readable import readable_parts
from tests.app.erasure_events import SECRET, events_of, fill, hits_of
from tests.cluster.ledger_log_kit import record_of
from tests.cluster.replicated_kit import URL, put_in_place

PATH = "/penstock/store1"


class Place:
    """A store, its bookies, and every secret that it has ever drawn."""

    def __init__(self, path: Path, *, shared: bool) -> None:
        self.data = path / "data"
        self.tier = path / "tier" if shared else None
        self.world = SimBookKeeper()
        self.drawn: dict[bytes, None] = {}
        if self.tier is not None:
            self.tier.mkdir()

    def open(self) -> Any:
        return penstock.open(self.data, log_at=URL, **({} if self.tier is None else {"tier2": str(self.tier)}))

    @property
    def keys(self) -> dict[str, bytes]:
        """The key objects, by name."""
        found = sorted(((self.tier or self.data) / DIRECTORY).glob("*/*"))
        return {file.name: file.read_bytes() for file in found}

    def is_readable(self) -> bool:
        """Whether somebody who has all that is left can read the secret of the events."""
        left = [data for data, _ in self.world.nodes.nodes.values()]
        for file in self.data.parent.rglob("*"):
            with suppress(FileNotFoundError, IsADirectoryError):  # the store works on
                left.append(file.read_bytes())
        uid = record_of(self.world, PATH).uid
        parts = readable_parts(self.world.bookies.values(), left, self.drawn, uid=uid)
        return any(SECRET in data for data in left) or any(SECRET in part.data for part in parts)

    def is_on_bookies(self) -> bool:
        """Whether bookies have the secret of the events in clear."""
        return any(
            SECRET in data
            for bookie in self.world.bookies.values()
            for ledger in (*bookie.memory.values(), *bookie.disk.values())
            for data in ledger.entries.values()
        )


@pytest.fixture(params=[False, True], ids=["in the directory", "in a shared directory"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return made(tmp_path, monkeypatch, shared=request.param)


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shared: bool = True) -> Place:
    found = Place(tmp_path, shared=shared)
    put_in_place(found.world, monkeypatch)
    write = ObjectLedgerKeys.write

    async def noting(self: ObjectLedgerKeys, key: Any, secret: bytes) -> None:
        found.drawn[secret] = None
        await write(self, key, secret)

    monkeypatch.setattr(ObjectLedgerKeys, "write", noting)
    return found


def check_erasure(place: Place) -> None:
    with place.open() as store:
        stream = store.create_stream("s/t", segments=3, create_scope=True)
        fill(stream, 700)
        hits = hits_of(events_of(stream))
        assert not place.is_on_bookies()
        assert place.is_readable(), "before the erasure, keys are there"
        receipt = stream.erase(hits, who="ann", why="request 17", erasure="r17")
        assert not place.is_readable(), "the secret can be read after the receipt"
        fill(stream, 50, start=700)
    assert receipt_problems(receipt) == []
    assert "the bytes on bookies are unreadable, because their keys were destroyed by 2" in receipt["tiers"]["log"]
    assert "the bookies free them later" in receipt["tiers"]["log"]
    assert receipt["log_keys"]["count"] == len(receipt["log_keys"]["keys"]) > 0
    for key in receipt["log_keys"]["keys"]:
        assert not isinstance(decode_key_object(place.keys[key], name=key), bytes)
    with place.open() as store:
        stream = store.stream("s/t")
        assert len(hits_of(events_of(stream))) == 7
        again = stream.erase(hits_of(events_of(stream)), who="ann", why="request 18", erasure="r18")
        assert again["sequence"] == 2
        assert not place.is_readable()
        assert hits_of(events_of(stream)) == []


def test_what_was_erased_is_in_no_file_and_nothing_that_is_left_decrypts_it(place: Place) -> None:
    check_erasure(place)


def test_a_planted_receipt_without_a_destroyed_key_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def destroy_others(self: Keyring, ledgers: Any) -> LogWipe:
        return LogWipe(at_ms=1)

    monkeypatch.setattr(Keyring, "destroy_others", destroy_others)
    monkeypatch.setattr(Keyring, "retire", lambda *_: None)
    with pytest.raises(AssertionError, match="can be read after the receipt"):
        check_erasure(made(tmp_path, monkeypatch))


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A store with events from before its log was encrypted. Clocks do not differ here."""
    place = made(tmp_path, monkeypatch)
    monkeypatch.setattr(ownership, "CLOCK_SLACK_MS", 0)
    original = log_keys.open_sealing

    @asynccontextmanager
    async def never(*arguments: Any, **named: Any) -> AsyncIterator[Any]:
        async with original(*arguments, **{**named, "may_write": lambda: False}) as sealing:
            yield sealing

    with monkeypatch.context() as before:
        before.setattr(log_keys, "open_sealing", never)
        with place.open() as store:
            fill(store.create_stream("s/t", segments=1, create_scope=True), 50)
            with pytest.raises(UnsupportedError, match="until they compact"):
                erase_all(store)
    return place


def erase_all(store: Any, **options: Any) -> Any:
    stream = store.stream("s/t")
    return stream.erase(hits_of(events_of(stream)), who="ann", why="request 17", **options)


def test_events_from_before_the_encryption_are_refused_with_the_reason_and_later_ones_are_erased(plain: Place) -> None:
    assert plain.is_on_bookies()
    with plain.open() as store:
        old = hits_of(events_of(store.stream("s/t")))
        for dry_run in (True, False):
            with pytest.raises(UnsupportedError, match="before the log was encrypted"):
                erase_all(store, dry_run=dry_run)
        assert list(store.erasures().list()) == [], "nothing was decided"
        store.create_stream("s/later", segments=1)
        fill(store.stream("s/later"), 50)
    with plain.open() as store:
        with pytest.raises(UnsupportedError, match="before the log was encrypted"):
            erase_all(store)
        assert hits_of(events_of(store.stream("s/t"))) == old
        stream = store.create_stream("s/last", segments=1)
        fill(stream, 50)
        receipt = stream.erase(hits_of(events_of(stream)), who="ann", why="request 18")
        assert receipt["where"]["events"] == 7
        assert record_of(plain.world, PATH).plain_ms


def test_a_log_without_its_keys_does_not_start_as_an_empty_one(place: Place) -> None:
    with place.open() as store:
        fill(store.create_stream("s/t", segments=1, create_scope=True), 50)
    for file in ((place.tier or place.data) / DIRECTORY).glob("*/*"):
        file.unlink()
    with pytest.raises(PenstockError, match="key of a ledger is missing"), place.open():
        pass


def test_files_of_the_store_have_no_secret_of_events_in_keys(place: Place) -> None:
    with place.open() as store:
        fill(store.create_stream("s/t", segments=1, create_scope=True), 50)
        store.erasures()
    assert place.keys
    assert all(len(data) == 44 for data in place.keys.values())
    assert not any(name.endswith(".tmp") for name in place.keys), "no second copy of a secret"
