"""Users and tokens that all controllers of a cluster share: without a controller, on one, on two, at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.app.cluster.access.keys import derived, settle_erasure_key, settle_token_key, token_key
from penstock.app.cluster.access.shared_files import OBJECTS, SharedFiles
from penstock.app.erasure.key import ERASURE_KEY, read_key
from penstock.core.cluster.shared_files import Seen, Step, next_step
from penstock.model.errors import CorruptDataError, InvalidArgumentError
from penstock.storage.access.secret_files import write_secret
from penstock.storage.access.store_key import load_key
from penstock.storage.memory.memory_coordination import MemoryCoordinator
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.testing.fakes import InlineOffload, SeededRng
from tests.cluster.virtual_time import run_virtually

SECRET = bytes(range(32))
NAMES = ("tokens.json", "users.json")


class Controller:
    """The files of one controller, and how it shares them."""

    def __init__(self, path: Path, coordinator: MemoryCoordinator, objects: MemoryObjects, *, secret=SECRET) -> None:
        self.data = path
        self.shared = SharedFiles(
            coordination=coordinator.open(),
            objects=objects,
            data=path,
            names=NAMES,
            cluster="c1",
            key=derived(secret, "c1", "users and tokens"),
            rng=SeededRng(len(str(path))),
            offload=InlineOffload(),
        )

    def write(self, name: str, text: str) -> None:
        write_secret(self.data / "access" / name, text.encode())

    def read(self) -> dict[str, str]:
        files = [self.data / "access" / name for name in NAMES]
        return {file.name: file.read_text() for file in files if file.exists()}

    def kept(self) -> list[str]:
        return sorted(file.read_text() for file in (self.data / "access").glob("*.conflict"))


@pytest.fixture
def two(tmp_path: Path):
    coordinator, objects = MemoryCoordinator(), MemoryObjects()
    return [Controller(tmp_path / name, coordinator, objects) for name in ("one", "other")], objects


def test_a_change_on_one_controller_reaches_the_other_and_is_encrypted_in_tier_2(two) -> None:
    (one, other), objects = two

    async def main() -> None:
        assert await one.shared.sync() is Step.NOTHING
        one.write("users.json", "ann")
        assert await one.shared.sync() is Step.PUSH
        assert await other.shared.sync() is Step.PULL
        assert other.read() == {"users.json": "ann"}
        other.write("tokens.json", "revoked: 7")
        assert await other.shared.sync() is Step.PUSH
        assert await one.shared.sync() is Step.PULL
        assert one.read() == other.read() == {"users.json": "ann", "tokens.json": "revoked: 7"}
        assert await one.shared.sync() is await other.shared.sync() is Step.NOTHING
        assert len(await objects.list(OBJECTS)) == 1
        assert not any(b"ann" in data or b"revoked" in data for data in objects._objects.values())

    run_virtually(main())


def test_a_lost_directory_or_file_does_not_remove_the_users_of_the_cluster(two) -> None:
    (one, other), _ = two

    async def main() -> None:
        one.write("users.json", "ann")
        one.write("tokens.json", "revoked: 7")
        await one.shared.sync()
        (one.data / "access" / "users.json").unlink()
        assert await one.shared.sync() is Step.PULL
        assert one.read() == {"users.json": "ann", "tokens.json": "revoked: 7"}
        for file in (one.data / "access").iterdir():
            file.unlink()
        assert await one.shared.sync() is Step.PULL
        assert await other.shared.sync() is Step.PULL
        assert one.read() == other.read() == {"users.json": "ann", "tokens.json": "revoked: 7"}
        (other.data / "access" / "users.json").unlink()
        other.write("tokens.json", "revoked: 7, 8")
        assert await other.shared.sync() is Step.PULL
        assert other.kept() == ["revoked: 7, 8"]

    run_virtually(main())


def test_of_two_changes_at_the_same_time_the_later_one_is_kept_aside(two) -> None:
    (one, other), _ = two

    async def main() -> None:
        one.write("users.json", "ann")
        await one.shared.sync()
        await other.shared.sync()
        one.write("users.json", "ann, bea")
        other.write("users.json", "ann, cay")
        assert await one.shared.sync() is Step.PUSH
        assert await other.shared.sync() is Step.CONFLICT
        assert one.read() == other.read() == {"users.json": "ann, bea"}
        assert other.kept() == ["ann, cay"]
        other.write("users.json", "ann, bea, cay")
        assert await other.shared.sync() is Step.PUSH
        assert await one.shared.sync() is Step.PULL
        assert one.kept() == []

    run_virtually(main())


def test_two_controllers_that_follow_agree_and_survive_an_outage_of_tier_2(tmp_path: Path) -> None:
    away = [False]

    async def before(verb: str, name: str) -> None:
        if away[0]:
            raise OSError("planted: tier 2 is away")

    coordinator, objects = MemoryCoordinator(), MemoryObjects(before=before)
    one, other = (Controller(tmp_path / name, coordinator, objects) for name in ("one", "other"))

    async def main() -> None:
        following = [asyncio.create_task(each.shared.follow()) for each in (one, other)]
        await asyncio.sleep(5)
        away[0] = True
        one.write("users.json", "ann")
        await asyncio.sleep(30)
        assert other.read() == {}
        away[0] = False
        await asyncio.sleep(5)
        assert other.read() == {"users.json": "ann"}
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)

    run_virtually(main())


def test_a_damaged_object_ends_only_a_controller_that_has_no_files_of_its_own(two) -> None:
    (one, other), objects = two

    async def main() -> None:
        one.write("users.json", "ann")
        await one.shared.catch_up()
        (name,) = await objects.list(OBJECTS)
        await objects.put(name, b"damaged")
        one.write("tokens.json", "revoked: 7")
        (one.data / "access" / "users.json").unlink()
        await one.shared.catch_up()
        assert one.read() == {"tokens.json": "revoked: 7"}
        with pytest.raises(CorruptDataError):
            await other.shared.catch_up()
        await objects.delete(name)
        with pytest.raises(OSError):
            await other.shared.catch_up()

    run_virtually(main())


def test_another_secret_neither_reads_nor_replaces_the_users(two, tmp_path: Path) -> None:
    (one, _), objects = two

    async def main() -> None:
        one.write("users.json", "ann")
        await one.shared.sync()
        stranger = Controller(tmp_path / "stranger", one.shared.coordination._coordinator, objects, secret=bytes(32))
        with pytest.raises(CorruptDataError, match="another secret"):
            await stranger.shared.sync()
        assert stranger.read() == {}

    run_virtually(main())


def test_the_key_of_tokens_is_the_same_on_all_machines_and_differs_by_cluster(tmp_path: Path) -> None:
    key = token_key(SECRET, "c1")
    assert key == token_key(SECRET, "c1")
    assert len({key.secret, token_key(SECRET, "c2").secret, token_key(bytes(32), "c1").secret}) == 3
    settle_token_key(tmp_path, key)
    settle_token_key(tmp_path, key)
    assert load_key(tmp_path) == key
    with pytest.raises(InvalidArgumentError, match="another cluster or secret"):
        settle_token_key(tmp_path, token_key(SECRET, "c2"))
    assert load_key(tmp_path) == key


def test_the_key_of_digests_is_the_same_on_all_machines_and_an_older_one_stays(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        settle_erasure_key(tmp_path / name, SECRET, "c1")
    first = read_key(tmp_path / "one" / ERASURE_KEY)
    assert first == read_key(tmp_path / "other" / ERASURE_KEY)
    settle_erasure_key(tmp_path / "one", bytes(32), "c1")
    assert read_key(tmp_path / "one" / ERASURE_KEY) == first


digests = st.sampled_from([None, "a", "b", "c"])


@given(local=digests, shared=digests, seen=digests)
def test_the_files_of_the_cluster_are_never_replaced_by_none_or_by_an_old_state(local, shared, seen) -> None:
    step = next_step(local=local, shared=shared, seen=Seen(digest=seen))
    if step is Step.PUSH:
        assert local is not None
        assert shared is None or (shared == seen and local != seen)
    if step is Step.NOTHING:
        assert local == shared
