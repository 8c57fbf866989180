"""The keys of the audit log, which each controller of a cluster can have to use."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.app.cluster.access.signing_keys import OBJECTS, SharedSigningKeys
from penstock.model.errors import NotFoundError, UnavailableError
from penstock.storage.memory.memory_objects import MemoryObjects
from tests.cluster.signing_kit import keys_of

LONG_AGO_S = 1_000_000_000


def signs(keys: SharedSigningKeys, public: bytes) -> bool:
    try:
        signature = keys.sign(public, b"a checkpoint")
    except NotFoundError:
        return False
    Ed25519PublicKey.from_public_bytes(public).verify(signature, b"a checkpoint")
    return True


async def keep_only(keys: SharedSigningKeys, current: bytes) -> None:
    """The end of a rotation to this key."""
    await keys.discard([public for public in await keys.listed() if public != current])


def test_another_controller_signs_with_the_key_that_a_lost_one_has_made(tmp_path: Path) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        one, other = keys_of(tmp_path / "one", objects), keys_of(tmp_path / "other", objects)
        public = await one.create()
        assert not signs(other, public)
        await other.catch_up()
        assert signs(other, public)
        found = objects._objects[f"{OBJECTS}/{public.hex()}"]
        assert one.files.private(public) not in found
        assert one.files.private(public).hex().encode() not in found
        (file,) = (tmp_path / "other" / "audit-keys").iterdir()
        assert file.stat().st_mode & 0o077 == 0

    asyncio.run(main())


def test_a_key_that_was_replaced_disappears_from_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        one, other = keys_of(tmp_path / "one", objects), keys_of(tmp_path / "other", objects)
        old = await one.create()
        await other.catch_up()
        new = await one.create()
        await keep_only(one, new)
        await other.catch_up()
        assert (signs(other, new), signs(other, old)) == (True, False)
        assert (signs(one, new), signs(one, old)) == (True, False)
        assert list(objects._objects) == [f"{OBJECTS}/{new.hex()}", f"{OBJECTS}/{old.hex()}.replaced"]

    asyncio.run(main())


def test_a_key_that_tier_2_lacks_is_not_deleted(tmp_path: Path) -> None:
    """It is the last copy of the key that a record names."""

    async def main() -> None:
        objects = MemoryObjects()
        one, other = keys_of(tmp_path / "one", objects), keys_of(tmp_path / "other", objects)
        current = await one.create()
        await objects.delete(f"{OBJECTS}/{current.hex()}")
        await other.catch_up()
        await other.create()  # a rotation that fails then, because the current key is not here
        for path in (tmp_path / "one" / "audit-keys").iterdir():
            os.utime(path, (LONG_AGO_S, LONG_AGO_S))
        await one.catch_up()
        assert signs(one, current)

    asyncio.run(main())


def test_without_the_secret_there_is_no_key_and_nothing_else_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        public = await keys_of(tmp_path / "one", objects).create()
        stranger = keys_of(tmp_path / "other", objects, secret=bytes(32))
        await stranger.catch_up()
        assert not signs(stranger, public)
        assert "a key of the audit log is missing" in caplog.text

    asyncio.run(main())


class Away(MemoryObjects):
    away = False

    async def put(self, name: str, data: bytes) -> None:
        self._check()
        await super().put(name, data)

    async def list(self, directory: str):
        self._check()
        return await super().list(directory)

    def _check(self) -> None:
        if self.away:
            raise UnavailableError("tier 2 is away")


def test_no_key_is_used_that_only_one_machine_has(tmp_path: Path) -> None:
    async def main() -> None:
        objects = Away()
        keys = keys_of(tmp_path, objects)
        public = await keys.create()
        objects.away = True
        with pytest.raises(UnavailableError):
            await keys.create()
        await keys.catch_up()
        assert signs(keys, public), "an outage of tier 2 stops no signature"

    asyncio.run(main())


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["create", "rotate"])), max_size=12))
def test_whichever_controller_becomes_active_has_the_current_key(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    async def main() -> None:
        place, objects = tmp_path_factory.mktemp("keys"), MemoryObjects()
        both = {name: keys_of(place / name, objects) for name in "ab"}
        current: bytes | None = None
        for name, step in steps:
            active = both[name]
            await active.catch_up()
            if current is not None:
                assert signs(active, current)
            if current is None or step == "rotate":
                current = await active.create()
                await keep_only(active, current)
            else:
                await active.create()  # it was stopped before a record named this one

    asyncio.run(main())
