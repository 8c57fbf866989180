"""The private keys of the audit log, which every controller needs when it becomes active.

Each key is a file, as on a single server, and an encrypted object in tier 2. Source: docs/design/0065-cluster.md, "Users and
tokens".
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from penstock.app.cluster.access.keys import unseal_any
from penstock.app.cluster.access.sealed import seal
from penstock.model.errors import CorruptDataError, PenstockError
from penstock.model.values.dataclass import dataclass
from penstock.ports.objects import Objects
from penstock.ports.rng import Rng
from penstock.storage.machine.signing_keys import FileSigningKeys

log = logging.getLogger(__name__)

OBJECTS: Final = "audit-keys"
"""Directory of tier 2 with the encrypted keys, each named by its public part."""

_REPLACED: Final = ".replaced"
"""Ends the name of an empty object that stays: with it, other controllers delete their files of a key. A key that tier 2
lacks need not be replaced: the object may be lost, and a file may be the last copy of the current key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSigningKeys:
    """Implements ``ports.signing.SigningKeys``. ``keys``: the first one encrypts, and each
    one decrypts. ``files`` and the other parts are borrowed."""

    files: FileSigningKeys
    objects: Objects
    cluster: str
    keys: Sequence[bytes]
    rng: Rng

    async def create(self) -> bytes:
        """As the protocol says. The object is written before anybody learns of the key: after the loss of this machine, the
        next active controller has it. If that fails, the file stays, and no record names it."""
        public = await self.files.create()
        sealed = seal(self.keys[0], self.files.private(public), about=self._about(public), rng=self.rng)
        await self.objects.put(_name(public), sealed)
        return public

    def sign(self, public: bytes, message: bytes) -> bytes:
        """As the protocol says."""
        return self.files.sign(public, message)

    async def listed(self) -> Collection[bytes]:
        """As the protocol says. Keys that only another machine has are not in it."""
        shared = _keys_of(await self.objects.list(OBJECTS))
        return sorted({*await self.files.listed(), *shared})

    async def discard(self, replaced: Collection[bytes]) -> None:
        """As the protocol says. Files of other controllers are deleted when these become active."""
        for public in replaced:
            await self.objects.put(f"{_name(public)}{_REPLACED}", b"")
            await self.objects.delete(_name(public))
        await self.files.discard(replaced)

    async def catch_up(self) -> None:
        """Fetch the keys that earlier active controllers have made, and delete the files of keys that one of them has
        replaced. If tier 2 is away or an object is damaged, this is logged: signing may then fail, but nothing else.
        """
        try:
            names = await self.objects.list(OBJECTS)
        except (PenstockError, OSError) as error:
            log.error("keys of the audit log may be missing", extra={"reason": str(error)})
            return
        replaced = _keys_of(name.removesuffix(_REPLACED) for name in names if name.endswith(_REPLACED))
        here = await self.files.listed()
        for public in sorted({*_keys_of(names)}.difference(here, replaced)):
            try:
                sealed = await self.objects.read(_name(public), 0, names[_name(public)])
                self.files.put(public, unseal_any(self.keys, sealed, about=self._about(public)))
            except (PenstockError, OSError) as error:
                log.error("a key of the audit log is missing", extra={"object": _name(public), "reason": str(error)})
        for public in sorted({*here}.intersection(replaced)):
            log.info(
                "a key of the audit log was replaced by another controller; deleting it here",
                extra={"key": public.hex()},
            )
            await self.files.discard([public])

    async def reseal(self) -> None:
        """Encrypt all objects with the first key. Repeat it if it fails. Raises CorruptDataError (an object cannot be
        decrypted), UnavailableError, OSError."""
        names = await self.objects.list(OBJECTS)
        for public in _keys_of(name for name, size in names.items() if size):
            name, about = _name(public), self._about(public)
            plain = unseal_any(self.keys, await self.objects.read(name, 0, names[name]), about=about)
            await self.objects.overwrite(name, seal(self.keys[0], plain, about=about, rng=self.rng))

    async def can_read(self) -> bool | None:
        """Whether the keys fit an object of tier 2; None: there is none. Raises UnavailableError, OSError."""
        names = await self.objects.list(OBJECTS)
        for public in _keys_of(name for name, size in names.items() if size):
            sealed = await self.objects.read(_name(public), 0, names[_name(public)])
            try:
                unseal_any(self.keys, sealed, about=self._about(public))
            except CorruptDataError:
                return False
            return True
        return None

    def _about(self, public: bytes) -> str:
        return f"{self.cluster}\0audit key\0{public.hex()}"


def _name(public: bytes) -> str:
    return f"{OBJECTS}/{public.hex()}"


def _keys_of(names: Iterable[str]) -> Sequence[bytes]:
    """The keys that objects of these names hold. Other names are left out."""
    texts = (name.rpartition("/")[2] for name in names)
    return [bytes.fromhex(text) for text in texts if len(text) == 64 and set(text) <= set("0123456789abcdef")]
