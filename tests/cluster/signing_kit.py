"""The shared signing keys of one controller, for tests."""

from __future__ import annotations

from pathlib import Path

from penstock.app.cluster.access.keys import derived_keys
from penstock.app.cluster.access.signing_keys import SharedSigningKeys
from penstock.storage.machine.signing_keys import FileSigningKeys
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.testing.fakes import SeededRng

SECRET = bytes(range(32))


def keys_of(data: Path, objects: MemoryObjects, *, secret: bytes = SECRET) -> SharedSigningKeys:
    return SharedSigningKeys(
        files=FileSigningKeys(data),
        objects=objects,
        cluster="c1",
        keys=derived_keys((secret,), "c1", "keys of the audit log"),
        rng=SeededRng(len(str(data))),
    )
