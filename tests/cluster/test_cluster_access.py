"""Users and tokens that all controllers of a cluster share: without a controller, on one, on two, at the same time."""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.app.cli.upkeep import shared_changes
from penstock.app.cli.upkeep.shared_changes import until_shared
from penstock.app.cli.upkeep.users import remove
from penstock.app.cluster.access.keys import derived, derived_keys, settle_erasure_key, settle_token_key, token_key
from penstock.app.cluster.access.shared_files import OBJECTS, OUTDATED_S, Freshness, SharedFile, SharedFiles
from penstock.app.erasure.key import ERASURE_KEY, read_key
from penstock.codec.store.cluster_nodes import ACCESS, SharedAccess, decode_node, encode_node
from penstock.core.cluster.shared_files import Step, next_step
from penstock.model.errors import ConflictError, CorruptDataError, InvalidArgumentError, UnavailableError
from penstock.storage.access.secret_files import write_secret
from penstock.storage.access.shared_note import cluster_has, is_shared, read_note
from penstock.storage.access.store_key import load_key
from penstock.storage.access.token_list import IssuedToken, change_tokens, load_tokens, merge_tokens, parse_tokens
from penstock.storage.access.users_file import User, change_users, load_users, parse_users
from penstock.storage.memory.memory_coordination import MemoryCoordinator
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.testing.fakes import InlineOffload, SeededRng
from tests.cluster.virtual_time import run_virtually

SECRET = bytes(range(32))
NAMES = ("tokens.json", "users.json")
TOKENS, USERS = NAMES


class Controller:
    """The files of one controller, and how it shares them."""

    def __init__(
        self, path: Path, coordinator: MemoryCoordinator, objects: MemoryObjects, *, secret=SECRET, **options
    ) -> None:
        self.data = path
        self.shared = SharedFiles(
            coordination=coordinator.open(),
            objects=objects,
            data=path,
            files=options.get("files", tuple(SharedFile(name=name) for name in NAMES)),
            cluster="c1",
            keys=derived_keys((secret,), "c1", "users and tokens"),
            rng=SeededRng(len(str(path))),
            offload=InlineOffload(),
            freshness=Freshness(options.get("steady_s", lambda: 0.0)),
        )

    def write(self, name: str, text: str) -> None:
        write_secret(self.data / "access" / name, text.encode())

    def read(self) -> dict[str, str]:
        files = [self.data / "access" / name for name in NAMES]
        return {file.name: file.read_text() for file in files if file.exists()}

    def is_lost(self, name: str) -> bool:
        """Whether the cluster has had this file, and it is missing here."""
        return not (self.data / "access" / name).exists() and name in read_note(self.data / "access").files

    def kept(self) -> list[str]:
        return sorted(file.read_text() for file in (self.data / "access").glob("*.conflict"))


@pytest.fixture
def two(tmp_path: Path):
    coordinator, objects = MemoryCoordinator(), MemoryObjects()
    return [Controller(tmp_path / name, coordinator, objects) for name in ("one", "other")], objects


def test_a_change_on_one_controller_reaches_the_other_and_is_encrypted_in_tier_2(two) -> None:
    (one, other), objects = two

    async def main() -> None:
        assert await one.shared.sync() == {}
        one.write("users.json", "ann")
        assert await one.shared.sync() == {USERS: Step.PUSH}
        assert await other.shared.sync() == {USERS: Step.PULL}
        assert other.read() == {"users.json": "ann"}
        other.write("tokens.json", "revoked: 7")
        assert await other.shared.sync() == {TOKENS: Step.PUSH}
        assert await one.shared.sync() == {TOKENS: Step.PULL}
        assert one.read() == other.read() == {"users.json": "ann", "tokens.json": "revoked: 7"}
        assert await one.shared.sync() == await other.shared.sync() == {}
        assert len(await objects.list(OBJECTS)) == 1
        assert not any(b"ann" in data or b"revoked" in data for data in objects._objects.values())

    run_virtually(main())


@pytest.mark.parametrize("is_changed", [False, True], ids=["unchanged", "changed"])
def test_a_lost_node_and_a_controller_with_old_files_bring_back_no_token_and_no_user(
    tmp_path: Path, is_changed: bool
) -> None:
    coordinator, objects = MemoryCoordinator(), MemoryObjects()
    files = (
        SharedFile(name=TOKENS, check=parse_tokens, merge=merge_tokens),
        SharedFile(name=USERS, check=parse_users),
    )
    fresh, stale, third = (
        Controller(tmp_path / name, coordinator, objects, files=files) for name in ("fresh", "stale", "third")
    )
    users, tokens = (fresh.data / "access" / name for name in (USERS, TOKENS))
    token = IssuedToken(id="t1", name="job", grants=(), issued_s=1, expires_s=1 << 40)

    async def main() -> None:
        change_users(users, lambda found: found.update({name: User(name=name) for name in ("ann", "bob")}))
        change_tokens(tokens, lambda found: found.update({token.id: token}), now_s=2)
        for one in (fresh, stale, third):
            await one.shared.sync()
        change_users(users, lambda found: found.pop("bob") and None)
        change_tokens(tokens, lambda found: found.update({token.id: replace(token, revoked_s=3)}), now_s=3)
        await fresh.shared.sync()
        if is_changed:  # one more, so that the other one's change has a lower number
            change_users(users, lambda found: found.update(eve=User(name="eve")))
            await fresh.shared.sync()
            change_users(stale.data / "access" / USERS, lambda found: found.update(dan=User(name="dan")))
        session = coordinator.open()
        await session.delete(ACCESS, (await session.read(ACCESS)).version)
        for one in (stale, third, fresh, stale, third):
            await one.shared.sync()
        for one in (fresh, stale, third):
            assert "bob" not in load_users(one.data / "access" / USERS)
            assert load_tokens(one.data / "access" / TOKENS)["t1"].revoked_s == 3
        change_users(users, lambda found: found.pop("ann") and None)
        await fresh.shared.sync()
        await stale.shared.sync()
        assert "ann" not in load_users(stale.data / "access" / USERS)

    asyncio.run(main())


@pytest.mark.parametrize("more", [0, 1], ids=["same-number", "older"])
def test_after_a_lost_node_no_revocation_of_either_controller_is_lost(tmp_path: Path, more: int) -> None:
    coordinator, objects = MemoryCoordinator(), MemoryObjects()
    files = (SharedFile(name=TOKENS, check=parse_tokens, merge=merge_tokens),)
    one, other = (Controller(tmp_path / name, coordinator, objects, files=files) for name in ("one", "other"))
    paths = [controller.data / "access" / TOKENS for controller in (one, other)]
    tokens = {key: IssuedToken(id=key, name="job", grants=(), issued_s=1, expires_s=1 << 40) for key in ("t1", "t2")}

    async def main() -> None:
        change_tokens(paths[0], lambda found: found.update(tokens), now_s=2)
        await one.shared.sync()
        await other.shared.sync()
        change_tokens(paths[0], lambda found: found.update(t1=replace(tokens["t1"], revoked_s=3)), now_s=3)
        await one.shared.sync()
        for _ in range(more):
            change_tokens(paths[0], lambda found: found.update(t3=replace(tokens["t1"], id="t3")), now_s=3)
            await one.shared.sync()
        session = coordinator.open()
        await session.delete(ACCESS, (await session.read(ACCESS)).version)
        change_tokens(paths[1], lambda found: found.update(t2=replace(tokens["t2"], revoked_s=4)), now_s=4)
        for controller in (other, one, other):
            await controller.shared.sync()
        for path in paths:
            found = load_tokens(path)
            assert (found["t1"].revoked_s, found["t2"].revoked_s, len(found)) == (3, 4, 2 + more)

    asyncio.run(main())


def test_a_publication_of_an_earlier_version_has_no_number_and_counts_as_new(two) -> None:
    (one, other), _ = two

    async def main() -> None:
        for text in ("first", "second"):
            one.write(USERS, text)
            await one.shared.sync()
            await other.shared.sync()
        one.write(USERS, "third")
        await one.shared.sync()
        session = one.shared.coordination
        node = await session.read(ACCESS)
        found = decode_node(SharedAccess, node.data)
        await session.set(ACCESS, encode_node(replace(found, number=0)), node.version)
        await other.shared.sync()
        assert other.read() == {USERS: "third"}

    asyncio.run(main())


def test_a_lost_directory_or_file_does_not_remove_the_users_of_the_cluster(two) -> None:
    (one, other), _ = two

    async def main() -> None:
        one.write("users.json", "ann")
        one.write("tokens.json", "revoked: 7")
        await one.shared.sync()
        (one.data / "access" / "users.json").unlink()
        assert await one.shared.sync() == {USERS: Step.PULL}
        assert one.read() == {"users.json": "ann", "tokens.json": "revoked: 7"}
        for file in (one.data / "access").iterdir():
            file.unlink()
        both = dict.fromkeys(NAMES, Step.PULL)
        assert await one.shared.sync() == both
        assert await other.shared.sync() == both
        assert one.read() == other.read() == {"users.json": "ann", "tokens.json": "revoked: 7"}
        (other.data / "access" / "users.json").unlink()
        other.write("tokens.json", "revoked: 7, 8")
        assert await other.shared.sync() == {USERS: Step.PULL, TOKENS: Step.PUSH}
        assert await one.shared.sync() == {TOKENS: Step.PULL}
        assert one.read() == other.read() == {"users.json": "ann", "tokens.json": "revoked: 7, 8"}
        assert one.kept() == other.kept() == []

    run_virtually(main())


def test_of_two_changes_at_the_same_time_the_later_one_is_kept_aside(two) -> None:
    (one, other), _ = two

    async def main() -> None:
        one.write("users.json", "ann")
        await one.shared.sync()
        await other.shared.sync()
        one.write("users.json", "ann, bea")
        other.write("users.json", "ann, cay")
        other.write("tokens.json", "revoked: 7")
        assert await one.shared.sync() == {USERS: Step.PUSH}
        assert await other.shared.sync() == {USERS: Step.CONFLICT, TOKENS: Step.PUSH}
        assert await one.shared.sync() == {TOKENS: Step.PULL}
        assert one.read() == other.read() == {"users.json": "ann, bea", "tokens.json": "revoked: 7"}
        assert other.kept() == ["ann, cay"]
        other.write("users.json", "ann, bea, cay")
        assert await other.shared.sync() == {USERS: Step.PUSH}
        assert await one.shared.sync() == {USERS: Step.PULL}
        assert one.kept() == []

    run_virtually(main())


@pytest.mark.parametrize("first", ["with", "without"])
def test_a_controller_with_users_of_its_own_leaves_those_of_the_cluster_alone(tmp_path: Path, first: str) -> None:
    coordinator, objects = MemoryCoordinator(), MemoryObjects()
    own = Controller(tmp_path / "own", coordinator, objects, files=(SharedFile(name=TOKENS),))
    plain = Controller(tmp_path / "plain", coordinator, objects)

    async def main() -> None:
        plain.write(USERS, "ann")
        order = [own, plain] if first == "with" else [plain, own]
        order[0].write(TOKENS, "revoked: 7")
        for _ in range(2):
            for one in order:
                await one.shared.sync()
        own.write(TOKENS, "revoked: 7, 8")
        assert await own.shared.sync() == {TOKENS: Step.PUSH}
        assert await plain.shared.sync() == {TOKENS: Step.PULL}
        assert plain.read() == {TOKENS: "revoked: 7, 8", USERS: "ann"}
        assert own.read() == {TOKENS: "revoked: 7, 8"}
        assert plain.kept() == own.kept() == []
        third = Controller(tmp_path / "the third", coordinator, objects)
        await third.shared.sync()
        assert third.read() == plain.read()

    run_virtually(main())


def test_a_command_does_not_begin_a_lost_file_anew_which_would_remove_the_users_of_the_cluster(two) -> None:
    (one, other), _ = two
    ann, bea = User(name="ann"), User(name="bea")

    async def main() -> None:
        file = one.data / "access" / USERS
        change_users(file, lambda users: users.update(ann=ann))
        await one.shared.sync()
        await other.shared.sync()
        file.unlink()
        with pytest.raises(UnavailableError, match="remove the note"):
            change_users(file, lambda users: users.update(bea=bea))
        await one.shared.sync()
        change_users(file, lambda users: users.update(bea=bea))
        await one.shared.sync()
        await other.shared.sync()
        assert set(load_users(other.data / "access" / USERS)) == {"ann", "bea"}

    run_virtually(main())


def test_a_file_that_cannot_be_read_is_never_published_and_is_replaced(tmp_path: Path) -> None:
    coordinator, objects = MemoryCoordinator(), MemoryObjects()
    files = (SharedFile(name=TOKENS, check=parse_tokens), SharedFile(name=USERS, check=parse_users))
    one, other = (Controller(tmp_path / name, coordinator, objects, files=files) for name in ("one", "other"))
    whole = json.dumps({"v": 1, "users": []})

    async def main() -> None:
        one.write(USERS, "damaged")
        assert await one.shared.sync() == {}, "and nobody else is given it"
        assert not await objects.list(OBJECTS)
        one.write(USERS, whole)
        await one.shared.sync()
        await other.shared.sync()
        one.write(USERS, whole[:-3])
        assert await other.shared.sync() == {}
        assert await one.shared.sync() == {USERS: Step.PULL}
        assert one.read() == other.read() == {USERS: whole}
        assert one.kept() == [whole[:-3]]

    run_virtually(main())


def test_an_object_that_was_replaced_while_it_was_read_is_no_reason_to_serve_old_users(tmp_path: Path) -> None:
    during: list[str] = []

    async def before(verb: str, name: str) -> None:
        if verb == "size" and during:
            one.write(USERS, during.pop())
            await one.shared.sync()

    coordinator, objects = MemoryCoordinator(), MemoryObjects(before=before)
    one, other = (Controller(tmp_path / name, coordinator, objects) for name in ("one", "other"))

    async def main() -> None:
        one.write(USERS, "ann")
        await one.shared.sync()
        during.append("ann, bea")
        await other.shared.catch_up()
        assert other.read() == {USERS: "ann, bea"}

    run_virtually(main())


def test_old_users_that_cannot_be_deleted_are_no_failure(tmp_path: Path) -> None:
    async def before(verb: str, name: str) -> None:
        if verb == "delete":
            raise UnavailableError("planted: the bucket refuses")

    one = Controller(tmp_path, MemoryCoordinator(), MemoryObjects(before=before))

    async def main() -> None:
        for names in ("ann", "ann, bea"):
            one.write(USERS, names)
            assert await one.shared.sync() == {USERS: Step.PUSH}
        assert await one.shared.sync() == {}

    run_virtually(main())


def test_a_damaged_note_loses_no_change(two) -> None:
    (one, other), _ = two

    async def main() -> None:
        one.write(USERS, "ann")
        await one.shared.sync()
        await other.shared.sync()
        other.write(USERS, "ann, bea")
        other.write(".shared.json", "damaged")
        assert await other.shared.sync() == {USERS: Step.CONFLICT}
        assert other.kept() == ["ann, bea"]
        other.write(".shared.json", "damaged")
        assert await other.shared.sync() == {}

    run_virtually(main())


verbs = ["sync", "sync", "sync", "revoke", "revoke", "add", "lose", "damage", "lose note"]
events = st.lists(st.tuples(st.sampled_from(verbs), st.integers(0, 1)), min_size=10, max_size=20)


@settings(deadline=None, max_examples=40)
@given(events=events)
def test_a_revocation_is_never_undone_whatever_happens_on_several_controllers(events) -> None:
    with tempfile.TemporaryDirectory() as path:
        run_virtually(_revoke_and_sync(Path(path), events))


async def _revoke_and_sync(path: Path, events: list[tuple[str, int]]) -> None:
    """Tokens are revoked and issued on three controllers, whose files are lost and damaged. A change that had not left its
    machine may be lost with it."""
    coordinator, objects = MemoryCoordinator(), MemoryObjects()
    files = (SharedFile(name=TOKENS, check=parse_tokens, merge=merge_tokens),)
    controllers = [
        Controller(path / f"{number:0{number + 1}}", coordinator, objects, files=files) for number in range(3)
    ]
    revoked: set[str] = set()
    unsent: list[set[str]] = [set(), set(), set()]
    for step, (event, number) in enumerate(events):
        one, file = controllers[number], controllers[number].data / "access" / TOKENS
        if event == "sync":
            await one.shared.sync()
            revoked |= unsent[number]
            unsent[number] = set()
        elif event in ("lose", "damage"):
            file.unlink(missing_ok=True)
            unsent[number] = set()
            if event == "damage":
                one.write(TOKENS, "damaged")
        elif event == "lose note":
            (one.data / "access" / ".shared.json").unlink(missing_ok=True)
        elif one.is_lost(TOKENS):
            with pytest.raises(UnavailableError, match="was lost"):
                change_tokens(file, dict.clear, now_s=2)
        elif not file.exists() or file.read_text() != "damaged":
            token = IssuedToken(
                id=f"t{step}",
                name="ann",
                grants=(),
                issued_s=1,
                expires_s=9,
                revoked_s=3 if event == "revoke" else None,
            )
            change_tokens(file, lambda tokens, token=token: tokens.update({token.id: token}), now_s=2)
            unsent[number] |= {token.id} if event == "revoke" else set()
    for _ in range(2):
        for one in controllers:
            await one.shared.sync()
    assert not any([await one.shared.sync() for one in controllers]), "they agree"
    for one, own in zip(controllers, unsent, strict=True):
        found = load_tokens(one.data / "access" / TOKENS) if one.read().get(TOKENS) != "damaged" else {}
        assert {token.id for token in found.values() if token.revoked_s is not None} >= (
            revoked | own if found else set()
        )
    if revoked:
        assert len({one.read()[TOKENS] for one in controllers}) == 1


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


class Away:
    """A tier 2 that can be away."""

    def __init__(self) -> None:
        self.is_away = False
        self.objects = MemoryObjects(before=self._before)

    async def _before(self, verb: str, name: str) -> None:
        if self.is_away:
            raise UnavailableError("planted: no answer")


def test_a_controller_that_cannot_fetch_what_changed_refuses_callers_after_a_minute(tmp_path: Path) -> None:
    coordinator, tier, other_tier = MemoryCoordinator(), Away(), Away()
    other_tier.objects._objects = tier.objects._objects
    clock = [0.0]
    one = Controller(tmp_path / "one", coordinator, tier.objects, steady_s=lambda: clock[0])
    other = Controller(tmp_path / "other", coordinator, other_tier.objects, steady_s=lambda: clock[0])

    async def main() -> None:
        one.write(TOKENS, "first")
        await one.shared.sync()
        await other.shared.sync()
        following = asyncio.ensure_future(one.shared.follow())
        tier.is_away = True
        await asyncio.sleep(5)
        clock[0] += 1000
        await asyncio.sleep(5)
        assert one.shared.freshness.outdated() is None, "nothing has changed, so nothing is missing"
        other.write(TOKENS, "revoked")
        assert await other.shared.sync() == {TOKENS: Step.PUSH}
        await asyncio.sleep(5)
        clock[0] += OUTDATED_S - 1
        await asyncio.sleep(5)
        assert one.shared.freshness.outdated() is None
        clock[0] += 1
        assert "planted" in (one.shared.freshness.outdated() or "")
        tier.is_away = False
        await asyncio.sleep(5)
        assert one.shared.freshness.outdated() is None
        assert one.read()[TOKENS] == "revoked"
        following.cancel()

    run_virtually(main())


def test_a_controller_that_cannot_publish_its_own_change_goes_on(tmp_path: Path) -> None:
    coordinator, tier, clock = MemoryCoordinator(), Away(), [0.0]
    one = Controller(tmp_path / "one", coordinator, tier.objects, steady_s=lambda: clock[0])

    async def main() -> None:
        one.write(TOKENS, "first")
        await one.shared.sync()
        tier.is_away = True
        one.write(TOKENS, "revoked here")
        following = asyncio.ensure_future(one.shared.follow())
        for _ in range(5):
            await asyncio.sleep(3)
            clock[0] += OUTDATED_S / 2
        assert one.shared.freshness.outdated() is None
        following.cancel()

    run_virtually(main())


def test_a_revoking_command_waits_until_the_cluster_has_the_change(two, monkeypatch: pytest.MonkeyPatch) -> None:
    (one, _), _ = two
    path = one.data / "access" / TOKENS
    monkeypatch.setattr(shared_changes, "_PATIENCE_S", 0.2)

    async def main() -> None:
        one.write(TOKENS, "before any controller")
        until_shared(path, lambda: True)
        await one.shared.sync()
        until_shared(path, lambda: True)
        one.write(TOKENS, "revoked")
        with pytest.raises(UnavailableError, match="other controllers accept what was revoked"):
            until_shared(path, lambda: True)
        waiting = asyncio.ensure_future(asyncio.to_thread(until_shared, path, lambda: True))
        await one.shared.sync()
        await waiting

    asyncio.run(main())


def test_a_removed_user_that_another_controller_brings_back_is_reported(
    two, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (one, other), _ = two
    files = [controller.data / "access" / USERS for controller in (one, other)]
    monkeypatch.setattr(shared_changes, "_LOOK_S", 0.01)

    def add(path: Path, name: str) -> None:
        change_users(path, lambda users: users.update({name: User(name=name)}))

    async def main() -> None:
        for name in ("ann", "bob"):
            add(files[0], name)
        await one.shared.sync()
        await other.shared.sync()
        add(files[1], "eve")
        await other.shared.sync()
        removing = asyncio.ensure_future(asyncio.to_thread(remove, "bob", one.data))
        while "bob" in load_users(files[0]):
            await asyncio.sleep(0.01)
        await one.shared.sync()
        with pytest.raises(ConflictError, match="nothing was revoked"):
            await removing
        assert {*load_users(files[0])} == {"ann", "bob", "eve"}
        removing = asyncio.ensure_future(asyncio.to_thread(remove, "bob", one.data))
        while not removing.done():
            await one.shared.sync()
            await asyncio.sleep(0.01)
        await removing
        await other.shared.sync()
        assert {*load_users(files[1])} == {"ann", "eve"}

    asyncio.run(main())
    assert capsys.readouterr().out.count("removed user bob") == 1


def test_a_controller_without_files_notes_that_its_cluster_shares_them(two) -> None:
    (one, _), _ = two

    async def main() -> None:
        await one.shared.sync()
        one.write(TOKENS, "issued before the first look")
        assert is_shared(one.data / "access" / TOKENS)
        assert not cluster_has(one.data / "access" / TOKENS)

    asyncio.run(main())


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
        settle_erasure_key(tmp_path / name, derived(SECRET, "c1", "digests"))
    first = read_key(tmp_path / "one" / ERASURE_KEY)
    assert first == read_key(tmp_path / "other" / ERASURE_KEY)
    settle_erasure_key(tmp_path / "one", bytes(32))
    assert read_key(tmp_path / "one" / ERASURE_KEY) == first


tokens = st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(1, 3))


@given(one=tokens, other=tokens)
def test_merged_tokens_have_all_of_both_and_the_earliest_revocations(one, other) -> None:
    first, second = contents_of(one), contents_of(other)
    merged = merge_tokens(first, second)
    found = {token.id: token.revoked_s for token in parse_tokens(merged).values()}
    assert found.keys() == one.keys() | other.keys()
    for token, revoked_s in found.items():
        assert revoked_s == min((at for at in (one.get(token), other.get(token)) if at is not None), default=None)
    assert merge_tokens(first, merged) == merged, "what was merged before a crash is merged again"
    assert (merged == second) == (found == other)


def contents_of(revoked: dict[str, int | None]) -> bytes:
    """A list of these tokens, and when each was revoked."""
    fields = {"name": "ann", "grants": [], "issued_s": 1, "expires_s": 9}
    items = [{"id": token, **fields, **({} if at is None else {"revoked_s": at})} for token, at in revoked.items()]
    return json.dumps({"v": 1, "tokens": items}).encode()


digests = st.sampled_from([None, "a", "b", "c"])


@given(local=digests, shared=digests, seen=digests)
def test_the_files_of_the_cluster_are_never_replaced_by_none_or_by_an_old_state(local, shared, seen) -> None:
    step = next_step(local=local, shared=shared, seen=seen)
    if step is Step.PUSH:
        assert local is not None
        assert shared is None or (shared == seen and local != seen)
    if step is Step.NOTHING:
        assert local == shared
