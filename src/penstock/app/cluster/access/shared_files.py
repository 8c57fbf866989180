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
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import field
from pathlib import Path
from typing import Final, NoReturn

from penstock.app.cluster.access.keys import unseal_any
from penstock.app.cluster.access.sealed import seal
from penstock.codec.store.cluster_nodes import ACCESS, SharedAccess, decode_node, encode_node
from penstock.core.cluster.shared_files import Step, next_step
from penstock.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NodeChangedError,
    NodeNotFoundError,
    PenstockError,
    SessionEndedError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.cluster.coordination import Coordination
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.storage.access.secret_files import FOLDER, MALFORMED, locked, read_secret, write_secret
from penstock.storage.access.shared_note import NOTE, SharedNote, read_note, write_note

log = logging.getLogger(__name__)

OBJECTS: Final = "access"
"""Directory of tier 2 with the encrypted objects."""
OUTDATED_S: Final = 60.0
"""How long a controller accepts callers although it cannot fetch what the cluster has, which may be a revocation. Longer
than a retry or a restart of tier 2, and short beside the ten minutes for which tokens of data connections are valid."""
_LOOK_S: Final = 1.0
_ATTEMPTS: Final = 16
"""How often publishing is repeated because other controllers have published; operators are few."""
_FILE_MAX_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFile:
    """A file in the folder ``access`` that controllers share. ``check`` raises PenstockError if the contents cannot be read:
    they are never published. ``merge`` returns both changes of a file that was changed on two controllers; its second
    argument is the file of the cluster. None: they cannot be merged."""

    name: str
    check: Callable[[bytes], object] = bytes
    merge: Callable[[bytes, bytes], bytes] | None = None


class Freshness:
    """How long a controller has known of users or tokens of the cluster that it cannot fetch. ``steady_s``: a clock that
    never goes back."""

    def __init__(self, steady_s: Callable[[], float]) -> None:
        self._steady_s = steady_s
        self._behind_s: float | None = None
        self._reason = ""

    def current(self) -> None:
        """Nothing of the cluster is missing here."""
        self._behind_s = None

    def behind(self, reason: str) -> None:
        """Something is missing, or this is not known."""
        self._reason = reason
        if self._behind_s is None:
            self._behind_s = self._steady_s()

    def outdated(self) -> str | None:
        """Why users and tokens may not be used any more; None: they may."""
        if self._behind_s is None or self._steady_s() - self._behind_s < OUTDATED_S:
            return None
        return f"users and tokens of the cluster cannot be fetched: {self._reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFiles:
    """``data``: the controller's directory. ``files``: those that this controller shares; what else the cluster has stays as
    it is. ``keys``: the first one encrypts, and each one decrypts. The other parts are borrowed."""

    coordination: Coordination
    objects: Objects
    data: Path
    files: tuple[SharedFile, ...]
    cluster: str
    keys: Sequence[bytes]
    rng: Rng
    offload: Offload
    freshness: Freshness = field(default_factory=lambda: Freshness(time.monotonic))

    async def sync(self) -> Mapping[str, Step]:
        """Bring the files and the cluster to the same state once. Returns what was done, for each file that differed.

        Raises UnavailableError (the coordinator or tier 2 does not answer), CorruptDataError (the object cannot be
        decrypted: another secret), InvalidArgumentError (others can read a file), NodeChangedError (others keep
        changing them), OSError.
        """
        for _ in range(_ATTEMPTS):
            done = await self._attempt()
            if done is not None:
                self.freshness.current()
                return done
        raise NodeChangedError("users and tokens of the cluster keep changing; try again", node=ACCESS)

    async def _attempt(self) -> Mapping[str, Step] | None:
        """``sync``. None: another controller was faster."""
        await self.coordination.sync()
        shared, version = await self._shared()
        there = {} if shared is None else shared.files
        local = await self.offload.run(self._read)
        note = await self.offload.run(lambda: read_note(self.data / FOLDER))
        seen = _seen(note, shared, self.files)
        steps = {
            one.name: _step(one, local.get(one.name), shared=there.get(one.name), seen=seen.get(one.name))
            for one in self.files
        }
        if not {Step.PULL, Step.CONFLICT} & {*steps.values()}:
            self.freshness.current()  # what cannot be published keeps nothing from this controller
        differing = {name: step for name, step in steps.items() if step is not Step.NOTHING}
        agreed = {name: there[name] for name in steps.keys() - differing.keys() if name in there}
        pushed = {name: local[name] for name, step in differing.items() if step is Step.PUSH}
        contents = {name: local[name] for name in agreed} | pushed
        if shared is not None and differing and there.keys() - contents.keys():
            try:
                fetched = await self._fetch(shared)
            except FileNotFoundError:
                if (await self._shared())[1] != version:
                    return None  # deleted, because another one has replaced it
                raise
            for one in self.files:
                if steps[one.name] in (Step.PULL, Step.CONFLICT):
                    taken = await self._take(one, steps[one.name], local.get(one.name), fetched[one.name], seen)
                    if taken == fetched[one.name]:
                        agreed[one.name] = there[one.name]
                    elif taken is not None:
                        pushed[one.name] = taken
            contents = fetched | pushed
        number = note.number if shared is None else shared.number
        if pushed:
            own = {name: _digest(data) for name, data in pushed.items()}
            number = _next_number(note, shared, own)
            if not await self._push(contents, shared, version, number=number):
                return None
            agreed |= own
        if any(one.name not in agreed and one.name in {*there, *pushed} for one in self.files):
            number = note.number  # not everything of this publication is here
        after = SharedNote(files={**note.files, **agreed}, number=number)
        if after != note or not await self.offload.run((self.data / FOLDER / NOTE).exists):
            await self.offload.run(lambda: write_note(self.data / FOLDER, after))
        return differing

    async def _take(
        self, one: SharedFile, step: Step, mine: bytes | None, theirs: bytes, seen: Mapping[str, str]
    ) -> bytes | None:
        """Replace a file by that of the cluster, or by both changes; return what it contains now. None: it has changed since
        it was read, and was left."""
        wanted, kept_because = theirs, None
        if mine is not None and _digest(mine) != seen.get(one.name):
            merged = _merged(one, mine, theirs) if step is Step.CONFLICT else None
            if merged is not None:
                wanted = merged
            elif step is Step.CONFLICT:
                kept_because = "it was changed on two controllers at the same time; make your change again"
            else:
                kept_because = "it cannot be read"
        is_written = await self.offload.run(lambda: self._replace(one.name, wanted, mine, kept_because))
        return wanted if is_written else None

    async def reseal(self) -> None:
        """Publish what the cluster has again, encrypted with the first key. Raises as ``sync``."""
        for _ in range(_ATTEMPTS):
            await self.coordination.sync()
            shared, version = await self._shared()
            if shared is None:
                return
            if await self._push(await self._fetch(shared), shared, version, number=shared.number):
                return
        raise NodeChangedError("users and tokens of the cluster keep changing; try again", node=ACCESS)

    async def catch_up(self) -> None:
        """``sync``, before callers are served. If that is impossible now, the files of this machine are used: one
        damaged or unreachable object must not end all controllers. Raises as ``sync`` if this machine has no files, and
        SessionEndedError.
        """
        try:
            await self.sync()
        except SessionEndedError:
            raise
        except (PenstockError, OSError) as error:
            if not any(self._path(one.name).exists() for one in self.files):
                raise
            self.freshness.behind(str(error))
            log.error("users and tokens may be out of date", extra={"reason": str(error), "accepted_s": OUTDATED_S})

    async def follow(self) -> NoReturn:
        """Call ``sync`` after each change, until cancelled. Raises SessionEndedError."""
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
                    self.freshness.behind(str(error))
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
        self, contents: dict[str, bytes], before: SharedAccess | None, version: int | None, *, number: int
    ) -> bool:
        """Publish the contents as all files of the cluster. False: another controller was faster."""
        files = {name: _digest(data) for name, data in sorted(contents.items())}
        name = f"{OBJECTS}/{_digest(''.join(files.values()).encode())[:32]}-{self.rng.randrange(1 << 32):08x}"
        await self.objects.put(name, self._encrypt(contents, name))
        data = encode_node(SharedAccess(object=name, files=files, number=number))
        try:
            if version is None:
                await self.coordination.create(ACCESS, data)
            else:
                await self.coordination.set(ACCESS, data, version)
        except (NodeChangedError, AlreadyExistsError):
            await self._delete(name)
            return False
        log.info("users and tokens of this controller are now those of the cluster", extra={"object": name})
        if before is not None:
            await self._delete(before.object)
        return True

    async def _delete(self, name: str) -> None:
        """Delete an object that no node names. It is encrypted, so one that stays is only garbage."""
        try:
            await self.objects.delete(name)
        except (PenstockError, OSError) as error:
            log.warning(
                "object with old users and tokens could not be deleted from tier 2",
                extra={"object": name, "reason": str(error)},
            )

    async def _fetch(self, shared: SharedAccess) -> dict[str, bytes]:
        """All files of the cluster, also those that this controller does not share."""
        size = await self.objects.size(shared.object)
        contents = self._decrypt(await self.objects.read(shared.object, 0, size), shared.object)
        if {name: _digest(data) for name, data in contents.items()} != dict(shared.files):
            raise CorruptDataError(
                "the users of the cluster do not match their published digests", object=shared.object
            )
        return contents

    def _encrypt(self, contents: dict[str, bytes], name: str) -> bytes:
        plain = json.dumps({file: base64.b64encode(data).decode() for file, data in sorted(contents.items())}).encode()
        return seal(self.keys[0], plain, about=self._about(name), rng=self.rng)

    def _decrypt(self, data: bytes, name: str) -> dict[str, bytes]:
        try:
            plain = unseal_any(self.keys, data, about=self._about(name))
            return {str(file): base64.b64decode(text) for file, text in json.loads(plain).items()}
        except (CorruptDataError, *MALFORMED) as error:
            raise CorruptDataError(
                "the users of the cluster cannot be decrypted: this controller has another secret, or the object is damaged",
                object=name,
            ) from error

    def _about(self, name: str) -> str:
        return f"{self.cluster}\0{name}"

    def _path(self, name: str) -> Path:
        return self.data / FOLDER / name

    def _read(self) -> dict[str, bytes]:
        found = {one.name: read_secret(self._path(one.name), max_bytes=_FILE_MAX_BYTES) for one in self.files}
        return {name: data for name, data in found.items() if data is not None}

    def _replace(self, name: str, data: bytes, expected: bytes | None, kept_because: str | None) -> bool:
        """Write the file. False: it has changed since it was read, and was left. ``kept_because``: why the replaced
        file is kept as ``*.conflict``; None: it is not kept."""
        path = self._path(name)
        with locked(path):
            current = read_secret(path, max_bytes=_FILE_MAX_BYTES)
            if current == data:
                return True
            if current != expected:
                return False
            if kept_because is not None and current is not None:
                kept = path.with_name(f"{name}.conflict")
                write_secret(kept, current)
                log.error(
                    "a file of users or tokens was replaced by the cluster's",
                    extra={"path": str(path), "reason": kept_because, "kept": str(kept)},
                )
            write_secret(path, data)
        return True


def _seen(note: SharedNote, shared: SharedAccess | None, files: Sequence[SharedFile]) -> Mapping[str, str]:
    """The digests on which controller and cluster last agreed, for ``next_step``.

    If the node was lost with ZooKeeper's data, the first controller that starts publishes its files, which may be old: they
    must not bring back users that were removed, and tokens that were revoked. Files older than those on which this controller
    agreed are merged with its own, or replaced by them. Of files with the same number, neither is known to be newer.
    """
    if shared is None or not shared.number:
        return note.files
    if shared.number < note.number:
        log.error(
            "users and tokens of the cluster are older than those that this controller has had from it",
            extra={"number": shared.number, "own": note.number},
        )
        return {one.name: shared.files[one.name] for one in files if one.merge is None and one.name in shared.files}
    if shared.number > note.number:
        return note.files
    return {name: digest for name, digest in note.files.items() if shared.files.get(name) == digest}


def _next_number(note: SharedNote, shared: SharedAccess | None, own: Mapping[str, str]) -> int:
    """The number of a publication of this controller. If it publishes a lost node again and has changed nothing, the number
    stays, because another controller may have newer files."""
    if shared is None and all(note.files.get(name) == digest for name, digest in own.items()):
        return max(1, note.number)
    return max(note.number, 0 if shared is None else shared.number) + 1


def _step(one: SharedFile, data: bytes | None, *, shared: str | None, seen: str | None) -> Step:
    """See ``next_step``. Contents that cannot be read count only if the cluster has the same."""
    local = None if data is None else _digest(data)
    if data is not None and local != shared and not _can_be_read(one, data):
        local = None
    return next_step(local=local, shared=shared, seen=seen)


def _can_be_read(one: SharedFile, data: bytes) -> bool:
    try:
        one.check(data)
    except PenstockError:
        return False
    return True


def _merged(one: SharedFile, mine: bytes, theirs: bytes) -> bytes | None:
    """Both changes. None: they cannot be merged."""
    if one.merge is None:
        return None
    try:
        return one.merge(mine, theirs)
    except PenstockError as error:
        log.error("changes cannot be merged", extra={"file": one.name, "reason": str(error)})
        return None


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()
