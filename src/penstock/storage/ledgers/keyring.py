"""The secrets of a log's ledgers, as one opening of the log holds them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from penstock.codec.store.ledger_keys import SECRET_BYTES
from penstock.model.errors import PenstockError, UnavailableError, UnsupportedError
from penstock.model.ledgers import KEY_ID_BYTES, LedgerKey, LogWipe
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.cluster.ledger_keys import LedgerKeys
from penstock.ports.rng import Rng
from penstock.storage.ledgers.ending import end_task

_log = logging.getLogger(__name__)

_PAUSE_S, _PAUSE_MAX_S = 1.0, 30.0
"""Between attempts to write a reserve and to destroy what is not needed: tier 2 may be away for long."""
_FORGET_S = 3600.0  # how often old markers are deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealing:
    """How a log encrypts its ledgers. ``keys``: the secrets of the log with a uid. ``may_write``: whether new ledgers are
    encrypted; what is encrypted is read in any case. ``refusal``: why a log that may not write them cannot be wiped.
    ``is_in_tier2``: see ``LogWipe``."""

    keys: Callable[[str], LedgerKeys]
    clock: Clock
    may_write: Callable[[], bool] = lambda: True
    refusal: str = "the log is not encrypted, and bookies keep deleted bytes until they compact"
    is_in_tier2: bool = False


class Keyring:
    """Draws secrets, keeps one written in reserve, and destroys those that are not needed.

    A secret is drawn by one opening, whose epoch is in its name. So an owner that was deposed, and does not know it yet,
    destroys no secret of its successor.
    """

    def __init__(self, sealing: Sealing, *, uid: str, epoch: int, rng: Rng) -> None:
        self.uid = uid
        self._keys = sealing.keys(uid)
        self._sealing = sealing
        self._epoch = epoch
        self._rng = rng
        self._reserve: tuple[LedgerKey, bytes] | None = None
        self._of: dict[int, LedgerKey] = {}
        """Of ledgers that the record lists, or will list."""
        self._retired: dict[LedgerKey, None] = {}
        self._writing = asyncio.Lock()
        """Held while a secret is written, and while those that are not needed are listed and destroyed: a secret that is
        written meanwhile would be taken for one that nobody needs."""
        self._tending: asyncio.Task[None] | None = None
        self._forgot_s: float | None = None

    @property
    def seals(self) -> bool:
        """Whether the next ledger is encrypted."""
        return self._sealing.may_write()

    @property
    def refusal(self) -> str:
        return self._sealing.refusal

    @property
    def clock(self) -> Clock:
        return self._sealing.clock

    async def take(self) -> tuple[LedgerKey, bytes]:
        """A written secret for the next ledger. It stays the reserve until ``began``. Raises UnavailableError."""
        if self._reserve is None:
            await self._refill()
        if self._reserve is None:
            raise UnavailableError("another ledger has used the key in reserve; try again")
        return self._reserve

    async def _refill(self) -> None:
        async with self._writing:
            if self._reserve is not None:
                return
            key = LedgerKey(epoch=self._epoch, id=self._bytes(KEY_ID_BYTES))
            secret = self._bytes(SECRET_BYTES)
            await self._keys.write(key, secret)
            self._reserve = key, secret

    def began(self, ledger: int, key: LedgerKey) -> None:
        """The secret encrypts this ledger. Another one is written for the next, in the background."""
        self._of[ledger] = key
        if self._reserve is not None and self._reserve[0] == key:
            self._reserve = None
        self._tend_soon()

    async def read(self, ledger: int, key: LedgerKey) -> bytes:
        """The secret of a listed ledger. Raises NotFoundError, CorruptDataError, UnavailableError."""
        self._of[ledger] = key
        return await self._keys.read(key)

    def retire(self, ledger: int) -> None:
        """The ledger was deleted. Its secret is destroyed in the background."""
        key = self._of.pop(ledger, None)
        if key is not None and key not in self._of.values():
            self._retired[key] = None
            self._tend_soon()

    async def check(self, ledger: int) -> None:
        """Raises UnsupportedError: the secret of this ledger could not be destroyed. Raises UnavailableError."""
        await self._keys.check(self._of[ledger])

    async def destroy_others(self, needed: Callable[[], Collection[int]]) -> LogWipe | None:
        """Destroy all secrets of the log but those of the ledgers that are needed, and the reserve. ``needed`` is asked when
        this call no longer waits for others: a ledger may be begun until then. One that is begun later gets the reserve.
        Raises as ``LedgerKeys``."""
        async with self._writing:
            ledgers = needed()
            kept = [key for ledger, key in self._of.items() if ledger in ledgers]
            if self._reserve is not None:
                kept.append(self._reserve[0])
            known = [key for key in (*self._of.values(), *self._retired) if key not in kept]
            await self._keys.destroy(known)  # a listing may lag
            found = await self._keys.destroy_others(kept, epoch=self._epoch)
            if found is None:
                return None
            self._retired = {key: None for key in self._retired if key in kept}
            self._of = {ledger: key for ledger, key in self._of.items() if key in kept}
            return replace(found, is_in_tier2=self._sealing.is_in_tier2)

    async def close(self) -> None:
        """Stop what runs in the background. The reserve is destroyed by the next wipe."""
        tending, self._tending = self._tending, None
        if tending is not None:
            await end_task(tending)

    # --- in the background

    def _tend_soon(self) -> None:
        if self._tending is None or self._tending.done():
            self._tending = asyncio.get_running_loop().create_task(self._tend())

    async def _tend(self) -> None:
        """Write a reserve, destroy what was retired, and forget old markers. Repeats until it is done."""
        pause_s = _PAUSE_S
        while (self._reserve is None and self.seals) or self._retired:
            try:
                if self.seals:
                    await self._refill()
                await self._destroy_retired()
                await self._forget()
            except UnavailableError as error:
                _log.warning(
                    "keys of ledgers cannot be written or destroyed until tier 2 answers",
                    extra={"epoch": self._epoch, "error": str(error)},
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            except PenstockError as error:
                # Nothing depends on it but the next wipe, which fails with this reason.
                _log.warning(
                    "keys of ledgers could not be written or destroyed",
                    extra={"epoch": self._epoch, "error": str(error)},
                )
                return

    async def _destroy_retired(self) -> None:
        async with self._writing:
            retired = list(self._retired)
            with suppress(UnsupportedError):  # the bucket keeps versions: the secrets stay, and erasure is refused
                await self._keys.destroy(retired)
            for key in retired:
                self._retired.pop(key, None)

    async def _forget(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._forgot_s is None or now_s - self._forgot_s >= _FORGET_S:
            await self._keys.forget_markers()
            self._forgot_s = now_s

    def _bytes(self, count: int) -> bytes:
        return self._rng.randrange(1 << 8 * count).to_bytes(count, "big")
