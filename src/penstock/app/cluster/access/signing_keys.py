"""The private keys of the audit log, which whichever controller is active must have.

Each key is a file, as on a single server, and an encrypted object in tier 2. Source: docs/design/0065-cluster.md, "Users and
tokens".
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from penstock.app.cluster.access.sealed import seal, unseal
from penstock.model.errors import PenstockError
from penstock.ports.clock import Clock
from penstock.ports.objects import Objects
from penstock.ports.rng import Rng
from penstock.storage.machine.signing_keys import FileSigningKeys

log = logging.getLogger(__name__)

OBJECTS: Final = "audit-keys"
"""Directory of tier 2 with the encrypted keys, each named by its public part."""

_LAG_S: Final = 86_400.0
"""A list of objects may lack what was put last, so a file is kept for at least a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSigningKeys:
    """Implements ``ports.signing.SigningKeys``. ``key``: for encryption. ``files`` and the other parts are borrowed."""

    files: FileSigningKeys
    objects: Objects
    cluster: str
    key: bytes
    rng: Rng
    clock: Clock

    async def create(self) -> bytes:
        """As the protocol says. The object is written before anybody learns of the key: after the loss of this machine, the
        next active controller has it. If that fails, the file stays, and no record names it."""
        public = await self.files.create()
        sealed = seal(self.key, self.files.private(public), about=self._about(public), rng=self.rng)
        await self.objects.put(_name(public), sealed)
        return public

    def sign(self, public: bytes, message: bytes) -> bytes:
        """As the protocol says."""
        return self.files.sign(public, message)

    async def keep_only(self, public: bytes) -> None:
        """As the protocol says. Files of other controllers are deleted when these become active."""
        await self.files.keep_only(public)
        for name in await self.objects.list(OBJECTS):
            if name != _name(public):
                await self.objects.delete(name)

    async def catch_up(self) -> None:
        """Fetch the keys that earlier active controllers have made, and delete the files of keys that one of them has
        replaced. Tier 2 that is away, and an object that is damaged, are logged: signing may then fail, and nothing else.
        """
        try:
            names = await self.objects.list(OBJECTS)
        except (PenstockError, OSError) as error:
            log.error("keys of the audit log may be missing", extra={"reason": str(error)})
            return
        shared = {bytes.fromhex(name.rpartition("/")[2]): size for name, size in names.items() if _is_key(name)}
        here = self.files.all()
        for public in sorted(shared.keys() - here.keys()):
            try:
                sealed = await self.objects.read(_name(public), 0, shared[public])
                self.files.put(public, unseal(self.key, sealed, about=self._about(public)))
            except (PenstockError, OSError) as error:
                log.error("a key of the audit log is missing", extra={"object": _name(public), "reason": str(error)})
        late_s = self.clock.now_ms() / 1000 - _LAG_S
        if shared.keys() & self.files.all().keys():
            for public in sorted(public for public, came_s in here.items() if public not in shared and came_s < late_s):
                log.info(
                    "a key of the audit log was replaced by another controller; deleting it here",
                    extra={"key": public.hex()},
                )
                self.files.delete(public)

    def _about(self, public: bytes) -> str:
        return f"{self.cluster}\0audit key\0{public.hex()}"


def _name(public: bytes) -> str:
    return f"{OBJECTS}/{public.hex()}"


def _is_key(name: str) -> bool:
    text = name.rpartition("/")[2]
    return len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)
