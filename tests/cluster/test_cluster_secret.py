"""The secret of a cluster: a process with another one is refused when it starts, and the secret can be changed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.app.cluster.access.keys import (
    AUDIT_KEYS,
    USERS,
    ClusterVerifier,
    derived_keys,
    settle_token_key,
    shared_erasure_key,
    token_key,
)
from penstock.app.cluster.access.secret import (
    ClusterSecret,
    SecretInForce,
    check_secret,
    draw_secret,
    obey_secret,
    read_cluster_secret,
    read_digests,
    secret_digest,
    write_cluster_secret,
)
from penstock.app.cluster.access.shared_files import SharedFile, SharedFiles
from penstock.app.cluster.access.signing_keys import SharedSigningKeys
from penstock.app.cluster.init import ClusterPlan, create_nodes
from penstock.app.cluster.operations import secrets as operations
from penstock.app.cluster.operations.doctor import secret_findings
from penstock.codec.store.cluster_nodes import (
    CONTROLLERS,
    SECRET,
    STORES,
    ControllerEntry,
    SecretDigests,
    StoreEntry,
    encode_node,
)
from penstock.model.errors import ConflictError, NotFoundError, UnauthenticatedError, WrongClusterError
from penstock.model.identity import Action
from penstock.model.names import StreamName
from penstock.storage.access.delegation import Issuer
from penstock.storage.access.secret_files import write_secret
from penstock.storage.access.store_key import load_key
from penstock.storage.machine.signing_keys import FileSigningKeys
from penstock.storage.memory.memory_coordination import MemoryCoordination, MemoryCoordinator
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.testing.fakes import FakeClock, InlineOffload, SeededRng
from tests.cluster.damage_kit import put

T = TypeVar("T")
OFFLOAD = InlineOffload()
OLD, NEW, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))
CONFIG = ClusterPlan(tier2="s3://bucket/flights", containers=1).config("ours", incarnation="one")
DIGESTS = {secret: secret_digest(secret, "ours") for secret in (OLD, NEW, OTHER)}


class World:
    """A cluster in memory whose secret is ``OLD``, and the operator's file with it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.objects = MemoryObjects()
        self.file = path / "cluster.secret"
        self.path = path
        self.coordinator = MemoryCoordinator()
        self.session: MemoryCoordination = self.coordinator.open()
        write_cluster_secret(self.file, ClusterSecret(current=OLD))
        monkeypatch.setattr(operations, "shared_objects", lambda *_, **__: self.objects)

    async def create(self, *, record: bool = True) -> None:
        secret = DIGESTS[OLD] if record else None
        await create_nodes(self.session, CONFIG, self.objects, SeededRng(1), secret=secret)

    async def check(self, secret: ClusterSecret) -> SecretInForce:
        return await check_secret(self.session, "ours", self.file, secret, OFFLOAD)

    async def change(self) -> None:
        await operations.begin_change(self.session, self.file, offload=OFFLOAD, rng=SeededRng(2))

    async def finish(self) -> bool:
        return await operations.finish_change(
            self.session, self.file, insecure=False, offload=OFFLOAD, rng=SeededRng(3)
        )

    async def record(self) -> bool:
        return await operations.record_secret(
            self.session, self.file, insecure=False, offload=OFFLOAD, rng=SeededRng(4)
        )

    async def digests(self) -> tuple[str, ...]:
        found, _ = await read_digests(self.session)
        return () if found is None else found.digests

    def signing(self, *known: bytes, data: str = "c1") -> SharedSigningKeys:
        keys = derived_keys(known, "ours", AUDIT_KEYS)
        (self.path / data).mkdir(exist_ok=True)
        files = FileSigningKeys(self.path / data)
        return SharedSigningKeys(files=files, objects=self.objects, cluster="ours", keys=keys, rng=SeededRng(5))

    def users(self, *known: bytes, data: str = "c1") -> SharedFiles:
        return SharedFiles(
            coordination=self.session,
            objects=self.objects,
            data=self.path / data,
            files=(SharedFile(name="users.json"),),
            cluster="ours",
            keys=derived_keys(known, "ours", USERS),
            rng=SeededRng(6),
            offload=OFFLOAD,
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_process_with_another_secret_is_refused_and_one_with_the_right_one_is_not(world: World) -> None:
    async def main() -> None:
        await world.create()
        assert (await world.check(ClusterSecret(current=OLD))).valid == [OLD]
        with pytest.raises(WrongClusterError, match="copy the file from a machine whose processes run"):
            await world.check(ClusterSecret(current=OTHER))
        with pytest.raises(WrongClusterError, match="copy the file"):
            await world.check(ClusterSecret(current=OTHER, earlier=OLD))
        assert (await world.check(ClusterSecret(current=OLD, earlier=OTHER))).valid == [OLD]

    asyncio.run(main())


def test_a_cluster_without_a_digest_accepts_any_secret_and_no_process_writes_one(world: World) -> None:
    async def main() -> None:
        await world.create(record=False)
        assert (await world.check(ClusterSecret(current=OTHER))).current == OTHER
        assert await world.digests() == ()
        await put(world.coordinator, SECRET, b"damaged")
        assert (await world.check(ClusterSecret(current=OTHER))).current == OTHER, "only the check stops"

    asyncio.run(main())


def test_the_operator_records_only_a_secret_that_decrypts_the_keys_of_the_cluster(world: World) -> None:
    async def main() -> None:
        await world.create(record=False)
        await world.signing(OLD).create()
        write_cluster_secret(world.file, ClusterSecret(current=OTHER))
        with pytest.raises(WrongClusterError, match="does not have the secret"):
            await world.record()
        assert await world.digests() == ()
        write_cluster_secret(world.file, ClusterSecret(current=OLD))
        assert await world.record()
        assert not await world.record()
        assert await world.digests() == (DIGESTS[OLD],)
        write_cluster_secret(world.file, ClusterSecret(current=OTHER))
        with pytest.raises(WrongClusterError, match="does not have the secret"):
            await world.record()

    asyncio.run(main())


def test_during_a_change_both_secrets_are_valid_and_afterwards_only_the_new_one(world: World) -> None:
    async def main() -> None:
        await world.create()
        await world.change()
        known = read_cluster_secret(world.file)
        assert known.earlier == OLD
        assert known.current == draw_secret(SeededRng(2))
        assert await world.digests() == (DIGESTS[OLD], secret_digest(known.current, "ours"))
        old, both = await world.check(ClusterSecret(current=OLD)), await world.check(known)
        assert both.valid == [known.current, OLD]
        with pytest.raises(ConflictError, match="finish"):
            await world.change()
        obeying = [asyncio.ensure_future(obey_secret(world.session, one)) for one in (old, both)]
        assert await world.finish()
        with pytest.raises(WrongClusterError, match="copy the file"):
            await asyncio.wait_for(obeying[0], 5)
        while both.earlier is not None:
            await asyncio.sleep(0)
        obeying[1].cancel()
        assert both.valid == [known.current]
        assert read_cluster_secret(world.file) == ClusterSecret(current=known.current)
        assert not await world.finish(), "a repetition changes nothing"
        await world.change()
        assert read_cluster_secret(world.file).earlier == known.current

    asyncio.run(main())


def test_a_change_is_not_finished_while_a_process_uses_the_earlier_secret(world: World) -> None:
    async def main() -> None:
        await world.create()
        await world.change()
        new = secret_digest(read_cluster_secret(world.file).current, "ours")
        store = StoreEntry(store="s1", clients="a:1", links="a:2", pid=1, secret=DIGESTS[OLD])
        controller = ControllerEntry(controller="c1", grpc="a:3", http="a:4", active=True, pid=2)
        await world.session.register(f"{STORES}/s1", encode_node(store))
        await world.session.register(f"{CONTROLLERS}/c1", encode_node(controller))
        before = dict(world.objects._objects)
        with pytest.raises(ConflictError, match="restart them") as refused:
            await world.finish()
        assert refused.value.fields["processes"] == "store s1, controller c1"
        assert world.objects._objects == before
        for path, entry in ((f"{STORES}/s1", store), (f"{CONTROLLERS}/c1", controller)):
            node = await world.session.read(path)
            await world.session.set(path, encode_node(replace(entry, secret=new)), node.version)
        assert await world.finish()

    asyncio.run(main())


def test_a_change_that_was_interrupted_after_the_file_is_continued(world: World) -> None:
    async def main() -> None:
        await world.create()
        write_cluster_secret(world.file, ClusterSecret(current=NEW, earlier=OLD))
        await world.change()
        assert read_cluster_secret(world.file) == ClusterSecret(current=NEW, earlier=OLD)
        assert await world.digests() == (DIGESTS[OLD], DIGESTS[NEW])

    asyncio.run(main())


def test_a_change_whose_node_was_lost_is_recorded_and_finished(world: World) -> None:
    async def main() -> None:
        await world.create()
        public = await world.signing(OLD).create()
        await world.change()
        new = read_cluster_secret(world.file).current
        await world.session.delete(SECRET, (await world.session.read(SECRET)).version)
        assert await world.record()
        assert await world.digests() == (DIGESTS[OLD], secret_digest(new, "ours"))
        assert await world.finish()
        signing = world.signing(new, data="c2")
        await signing.catch_up()
        assert await signing.files.listed() == [public]

    asyncio.run(main())


def test_what_a_late_process_encrypts_with_the_earlier_secret_is_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        await world.create()
        await world.change()
        late = world.users(OLD, data="late")
        reseal = operations.reseal

        async def overtaken(*parts: Any, **options: Any) -> None:
            monkeypatch.setattr(operations, "reseal", reseal)
            await reseal(*parts, **options)
            write_secret(world.path / "late" / "access" / "users.json", b"of a controller that was down")
            await late.sync()

        monkeypatch.setattr(operations, "reseal", overtaken)
        assert await world.finish()
        found = world.users(read_cluster_secret(world.file).current, data="new")
        await found.sync()
        assert (world.path / "new" / "access" / "users.json").read_bytes() == b"of a controller that was down"

    asyncio.run(main())


class _Interleaving(InlineOffload):
    """Lets other tasks run after each call, as threads do."""

    async def run(self, work: Callable[[], T]) -> T:
        result = work()
        await asyncio.sleep(0)
        return result


def test_two_changes_of_one_file_at_the_same_time_lose_no_secret(world: World) -> None:
    async def main() -> None:
        await world.create()
        calls = [
            operations.begin_change(world.session, world.file, offload=_Interleaving(), rng=SeededRng(seed))
            for seed in (2, 9)
        ]
        failures = [one for one in await asyncio.gather(*calls, return_exceptions=True) if one is not None]
        assert all(isinstance(one, ConflictError) for one in failures)
        known = read_cluster_secret(world.file)
        assert known.earlier == OLD
        assert await world.digests() == (DIGESTS[OLD], secret_digest(known.current, "ours"))
        assert await world.finish()

    asyncio.run(main())


@pytest.mark.parametrize("theirs", [NEW, OTHER], ids=["same", "other"])
def test_a_change_that_another_call_was_faster_with_keeps_only_a_file_that_fits(world: World, theirs: bytes) -> None:
    async def main() -> None:
        await world.create()
        set_node = world.session.set

        async def slower(path: str, data: bytes, version: int) -> int:
            await set_node(path, encode_node(SecretDigests(digests=(DIGESTS[OLD], DIGESTS[theirs]))), version)
            return await set_node(path, data, version)

        world.session.set = slower  # type: ignore[method-assign]
        before = ClusterSecret(current=NEW, earlier=OLD)  # as an interrupted call left it
        write_cluster_secret(world.file, before)
        if theirs == NEW:
            await world.change()
        else:
            with pytest.raises(ConflictError):
                await world.change()
        assert read_cluster_secret(world.file) == before

    asyncio.run(main())


def test_the_end_of_a_change_leaves_a_file_in_which_the_next_one_has_begun(world: World) -> None:
    async def main() -> None:
        await world.create()
        await world.change()
        set_node = world.session.set

        async def overtaken(path: str, data: bytes, version: int) -> int:
            world.session.set = set_node  # type: ignore[method-assign]
            at = await set_node(path, data, version)
            await operations.begin_change(world.session, world.file, offload=OFFLOAD, rng=SeededRng(9))
            return at

        world.session.set = overtaken  # type: ignore[method-assign]
        assert await world.finish()
        known = read_cluster_secret(world.file)
        assert await world.digests() == tuple(secret_digest(one, "ours") for one in reversed(known.all))

    asyncio.run(main())


def test_a_change_needs_the_secret_and_its_digest(world: World) -> None:
    async def main() -> None:
        await world.create(record=False)
        for call in (world.change, world.finish):
            with pytest.raises(NotFoundError, match="secret record"):
                await call()
        await world.record()
        write_cluster_secret(world.file, ClusterSecret(current=OTHER))
        for call in (world.change, world.finish):
            with pytest.raises(WrongClusterError):
                await call()
        assert await world.digests() == (DIGESTS[OLD],)
        assert read_cluster_secret(world.file) == ClusterSecret(current=OTHER)

    asyncio.run(main())


def test_after_a_change_a_new_controller_reads_all_keys_with_the_new_secret_alone(world: World) -> None:
    async def main() -> None:
        await world.create()
        public = await world.signing(OLD).create()
        erasure = await shared_erasure_key(world.objects, (OLD,), "ours")
        write_secret(world.path / "c1" / "access" / "users.json", b"ann")
        await world.users(OLD).sync()
        await world.change()
        known = read_cluster_secret(world.file)
        assert await shared_erasure_key(world.objects, known.all, "ours") == erasure
        await world.finish()
        new = known.current
        fresh = world.signing(new, data="c2")
        await fresh.catch_up()
        assert fresh.sign(public, b"x") == world.signing(OLD).sign(public, b"x")
        await world.users(new, data="c2").sync()
        assert (world.path / "c2" / "access" / "users.json").read_bytes() == b"ann"
        assert await shared_erasure_key(world.objects, (new,), "ours") == erasure
        assert await world.signing(OLD).can_read() is False
        assert await world.signing(new).can_read() is True

    asyncio.run(main())


def test_a_store_accepts_tokens_of_both_secrets_until_the_change_is_finished() -> None:
    clock, secrets = (
        FakeClock(),
        SecretInForce(ClusterSecret(current=NEW, earlier=OLD), [DIGESTS[NEW], DIGESTS[OLD]], Path("f")),
    )
    verifier = ClusterVerifier(secrets, "ours", clock)
    stream, actions = StreamName.parse("shop/clicks"), frozenset({Action.READ})
    tokens = {one: Issuer(token_key(one, "ours"), clock).issue("ann", stream, actions) for one in (OLD, NEW, OTHER)}
    for one in (OLD, NEW):
        assert verifier.verify(tokens[one]).subject == "ann"
    with pytest.raises(UnauthenticatedError):
        verifier.verify(tokens[OTHER])
    secrets.note(SecretDigests(digests=(DIGESTS[NEW],)))
    assert verifier.verify(tokens[NEW]).subject == "ann"
    with pytest.raises(UnauthenticatedError):
        verifier.verify(tokens[OLD])


def test_the_key_of_tokens_in_a_directory_follows_the_change(tmp_path: Path) -> None:
    old, new = token_key(OLD, "ours"), token_key(NEW, "ours")
    settle_token_key(tmp_path, old)
    settle_token_key(tmp_path, new, old)
    assert load_key(tmp_path) == new


def test_the_doctor_names_what_is_missing() -> None:
    assert "record" in secret_findings(None, {})[0].action
    assert secret_findings(SecretDigests(digests=("a",)), {"store s": ""}) == []
    both = SecretDigests(digests=("a", "b"))
    (found,) = secret_findings(both, {"store s": "a", "store t": "b"})
    assert "earlier one: store s" in found.problem
    assert "restart" in found.action
    (found,) = secret_findings(both, {"store t": "b"})
    assert "restart" not in found.action
