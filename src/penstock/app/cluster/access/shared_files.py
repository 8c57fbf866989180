"""The users and the list of tokens of a cluster, which all its controllers share.

Each controller has them as files, which `penstock user` and `penstock token` change. A change on one machine reaches the
others within seconds: encrypted, as an object in tier 2, which a node names. Rules: docs/design/0065-cluster.md, "Users and
tokens".
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from penstock.codec.store.cluster_nodes import ACCESS, SharedAccess, decode_node, encode_node
from penstock.core.cluster.shared_files import Seen, Step, next_step
from penstock.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NodeChangedError,
    NodeNotFoundError,
    PenstockError,
    SessionEndedError,
)
from penstock.ports.cluster.coordination import Coordination
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.storage.access.secret_files import FOLDER, MALFORMED, locked, read_secret, write_secret

log = logging.getLogger(__name__)

OBJECTS: Final = "access"
"""Directory of tier 2 with the encrypted objects."""
_LOOK_S: Final = 1.0
_NONCE_BYTES: Final = 12
_FILE_MAX_BYTES: Final = 16 << 20
_SEEN: Final = ".shared.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFiles:
    """``data``: the controller's directory. ``names``: of the files in its folder ``access``. ``key``: for encryption.
    The other parts are borrowed."""

    coordination: Coordination
    objects: Objects
    data: Path
    names: tuple[str, ...]
    cluster: str
    key: bytes
    rng: Rng
    offload: Offload

    async def sync(self) -> Step:
        """Bring the files and the cluster to the same state once. Returns what was done.

        Raises UnavailableError (the coordinator or tier 2 does not answer), CorruptDataError (the object cannot be decrypted:
        another secret), InvalidArgumentError (others can read a file), OSError.
        """
        await self.coordination.sync()
        shared, version = await self._shared()
        local = await self.offload.run(self._read)
        digest = _digest(local)
        seen = await self.offload.run(self._seen)
        is_whole = bool(local) and (shared is None or set(shared.files) <= set(local))
        step = next_step(
            local=digest if is_whole else None, shared=None if shared is None else shared.digest, seen=seen
        )
        if step is Step.PUSH:
            return step if await self._push(local, digest, shared, version) else await self.sync()
        if shared is not None and step in (Step.PULL, Step.CONFLICT):
            contents = await self._fetch(shared)
            if await self.offload.run(lambda: self._replace(contents, local, keep=digest != seen.digest)):
                await self.offload.run(lambda: self._write_seen(shared.digest))
        elif shared is not None and seen.digest != digest:
            await self.offload.run(lambda: self._write_seen(digest))
        return step

    async def catch_up(self) -> None:
        """``sync``, before callers are served. If that is impossible now, the files of this machine count: one object that is
        damaged or away must not end all controllers. Raises as ``sync`` if this machine has no files, and SessionEndedError.
        """
        try:
            await self.sync()
        except SessionEndedError:
            raise
        except (PenstockError, OSError) as error:
            if not any(self._path(name).exists() for name in self.names):
                raise
            log.error("users and tokens may be out of date", extra={"reason": str(error)})

    async def follow(self) -> NoReturn:
        """Do it again after each change, until cancelled. Raises SessionEndedError."""
        changed = asyncio.Event()
        watching = asyncio.ensure_future(self._watch(changed))
        last: str | None = None
        try:
            while True:
                changed.clear()
                try:
                    await self.sync()
                    last = None
                except SessionEndedError:
                    raise
                except (PenstockError, OSError) as error:
                    if str(error) != last:
                        log.error("users and tokens differ from those of the cluster", extra={"reason": str(error)})
                    last = str(error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _LOOK_S)
                if watching.done():
                    watching.result()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, changed: asyncio.Event) -> None:
        async with aclosing(self.coordination.notices(ACCESS)) as notices:
            async for _ in notices:
                changed.set()

    async def _shared(self) -> tuple[SharedAccess | None, int | None]:
        try:
            node = await self.coordination.read(ACCESS)
        except NodeNotFoundError:
            return None, None
        return decode_node(SharedAccess, node.data), node.version

    async def _push(
        self, local: dict[str, bytes], digest: str, before: SharedAccess | None, version: int | None
    ) -> bool:
        """Publish the files. False: another controller was faster."""
        name = f"{OBJECTS}/{digest[:32]}-{self.rng.randrange(1 << 32):08x}"
        await self.objects.put(name, self._encrypt(local, name))
        data = encode_node(SharedAccess(digest=digest, object=name, files=tuple(sorted(local))))
        try:
            if version is None:
                await self.coordination.create(ACCESS, data)
            else:
                await self.coordination.set(ACCESS, data, version)
        except (NodeChangedError, AlreadyExistsError):
            await self.objects.delete(name)
            return False
        await self.offload.run(lambda: self._write_seen(digest))
        log.info("users and tokens of this controller are now those of the cluster", extra={"digest": digest[:12]})
        if before is not None:
            await self.objects.delete(before.object)
        return True

    async def _fetch(self, shared: SharedAccess) -> dict[str, bytes]:
        size = await self.objects.size(shared.object)
        contents = self._decrypt(await self.objects.read(shared.object, 0, size), shared.object)
        if _digest(contents) != shared.digest:
            raise CorruptDataError("the users of the cluster are not those that were published", object=shared.object)
        return contents

    def _encrypt(self, contents: dict[str, bytes], name: str) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = self.rng.randrange(1 << 8 * _NONCE_BYTES).to_bytes(_NONCE_BYTES, "big")
        plain = json.dumps({file: base64.b64encode(data).decode() for file, data in sorted(contents.items())}).encode()
        return nonce + AESGCM(self.key).encrypt(nonce, plain, self._about(name))

    def _decrypt(self, data: bytes, name: str) -> dict[str, bytes]:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            plain = AESGCM(self.key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], self._about(name))
            found = {str(file): base64.b64decode(text) for file, text in json.loads(plain).items()}
        except (InvalidTag, *MALFORMED) as error:
            raise CorruptDataError(
                "the users of the cluster cannot be decrypted: this controller has another secret, or the object is damaged",
                object=name,
            ) from error
        return {file: found[file] for file in self.names if file in found}

    def _about(self, name: str) -> bytes:
        return f"{self.cluster}\0{name}".encode()

    def _path(self, name: str) -> Path:
        return self.data / FOLDER / name

    def _read(self) -> dict[str, bytes]:
        found = {name: read_secret(self._path(name), max_bytes=_FILE_MAX_BYTES) for name in self.names}
        return {name: data for name, data in found.items() if data is not None}

    def _replace(self, contents: dict[str, bytes], expected: dict[str, bytes], *, keep: bool) -> bool:
        """Write the shared files over the local ones. False: one of them has changed since it was read, and was left.
        ``keep``: a local file may have a change that the cluster lacks."""
        complete = True
        for name in self.names:
            path = self._path(name)
            with locked(path):
                current = read_secret(path, max_bytes=_FILE_MAX_BYTES)
                if current == contents.get(name):
                    continue
                if current != expected.get(name):
                    complete = False
                    continue
                if keep and current is not None:
                    kept = path.with_name(f"{name}.conflict")
                    write_secret(kept, current)
                    log.error(
                        "users or tokens were changed on two controllers at the same time, and the other change counts; make"
                        " yours again",
                        extra={"path": str(path), "kept": str(kept)},
                    )
                if name in contents:
                    write_secret(path, contents[name])
                else:
                    path.unlink(missing_ok=True)
        return complete

    def _seen(self) -> Seen:
        text = read_secret(self._path(_SEEN), max_bytes=_FILE_MAX_BYTES)
        if text is None:
            return Seen(digest=None)
        try:
            return Seen(digest=str(json.loads(text)["digest"]))
        except MALFORMED as error:
            raise CorruptDataError(
                "the note on shared users cannot be read; remove the file", path=str(self._path(_SEEN))
            ) from error

    def _write_seen(self, digest: str) -> None:
        write_secret(self._path(_SEEN), json.dumps({"digest": digest}).encode() + b"\n")


def _digest(contents: dict[str, bytes]) -> str:
    """One digest of all files, with their names and lengths."""
    whole = hashlib.sha256()
    for name, data in sorted(contents.items()):
        whole.update(f"{name}\0{len(data)}\0".encode() + data)
    return whole.hexdigest()
