"""What BookKeeper keeps in ZooKeeper, read and changed: ledgers, ids of new ones, bookies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.ledger_metadata import (
    LAYOUT,
    LONG_ID,
    LedgerMetadata,
    LedgerState,
    Registration,
    decode_ledger_metadata,
    decode_registration,
    encode_ledger_metadata,
    ledger_path,
)
from penstock.model.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    CorruptDataError,
    NotConnectedError,
    NotFoundError,
    UnsupportedError,
)
from penstock.model.ledgers import Bookie
from penstock.ports.cluster.nodes import Nodes

READ_ONLY = "readonly"


class LedgerNodes:
    """The nodes of BookKeeper below ``root``, such as ``/ledgers``."""

    def __init__(self, nodes: Nodes, root: str) -> None:
        self._nodes = nodes
        self._root = root

    async def check_layout(self) -> str:
        """The id of this BookKeeper cluster. Raises UnsupportedError: ledgers are found in another way than ours;
        NotFoundError: no BookKeeper has its root here."""
        try:
            layout, _ = await self._nodes.read(f"{self._root}/LAYOUT")
            instance, _ = await self._nodes.read(f"{self._root}/INSTANCEID")
        except NotFoundError as error:
            raise NotFoundError(
                "no BookKeeper has its metadata at this path; check the address and the path", path=self._root
            ) from error
        if layout.strip() != LAYOUT:
            raise UnsupportedError(
                "BookKeeper's layout of ledgers is not supported; use HierarchicalLedgerManagerFactory",
                layout=layout.decode(errors="replace"),
            )
        return instance.decode(errors="replace")

    async def bookies(self) -> list[Bookie]:
        """Those that take new entries, by name."""
        found = []
        for name in await self._nodes.children(f"{self._root}/available"):
            if name == READ_ONLY:
                continue
            try:
                data, _ = await self._nodes.read(f"{self._root}/available/{name}")
                place = decode_registration(data, bookie=name)
            except (NotFoundError, CorruptDataError):
                continue  # it left meanwhile, or nobody can reach it
            found.append(Bookie(name=name, host=place.host, zone=dict(place.properties).get("zone", "")))
        return found

    async def read_only(self) -> list[str]:
        """Names of those that take no new entries, and answer reads."""
        try:
            return list(await self._nodes.children(f"{self._root}/available/{READ_ONLY}"))
        except NotFoundError:
            return []  # created with the first such bookie

    async def locate(self, name: str) -> Registration:
        """Where the bookie is. Raises NotConnectedError if it is not registered."""
        for path in (f"{self._root}/available/{name}", f"{self._root}/available/{READ_ONLY}/{name}"):
            try:
                data, _ = await self._nodes.read(path)
                return decode_registration(data, bookie=name)
            except NotFoundError:
                continue
        raise NotConnectedError("bookie is not registered", bookie=name)

    async def ledgers(self) -> list[int]:
        """Ids of all ledgers with short ids, sorted. Those of other programs are among them."""
        found = []
        for high in await self._folders(self._root, 2):
            for middle in await self._folders(f"{self._root}/{high}", 4):
                names = await self._below(f"{self._root}/{high}/{middle}")
                found += [int(high + middle + name[1:]) for name in names if name[0] == "L" and name[1:].isdigit()]
        return sorted(found)

    async def _folders(self, path: str, digits: int) -> list[str]:
        return [name for name in await self._below(path) if len(name) == digits and name.isdigit()]

    async def _below(self, path: str) -> Sequence[str]:
        try:
            return await self._nodes.children(path)
        except NotFoundError:
            return ()  # BookKeeper deletes empty folders

    async def new_id(self) -> int:
        """An id that no ledger has had. Raises UnsupportedError after 2^31 - 2 ledgers."""
        number = await self._nodes.next_number(f"{self._root}/idgen/ID-")
        if number >= LONG_ID:
            raise UnsupportedError("BookKeeper has used up its short ledger ids", id=number, limit=LONG_ID)
        return number

    async def create(self, ledger: int, metadata: LedgerMetadata) -> int:
        """Write a new ledger's metadata; return the version. A create that happened though its answer was lost is
        recognized by the token. Raises AlreadyExistsError, NotConnectedError."""
        try:
            await self._nodes.create(self._path(ledger), encode_ledger_metadata(metadata))
        except AlreadyExistsError:
            found, version = await self.read(ledger)
            if found.token != metadata.token:
                raise
            return version
        return 0

    async def read(self, ledger: int) -> tuple[LedgerMetadata, int]:
        """Metadata and version. Raises NotFoundError, CorruptDataError, VersionTooNewError."""
        try:
            data, version = await self._nodes.read(self._path(ledger))
        except NotFoundError as error:
            raise NotFoundError("ledger does not exist", ledger=ledger) from error
        return decode_ledger_metadata(data, ledger=ledger), version

    async def replace(self, ledger: int, metadata: LedgerMetadata, version: int) -> int | None:
        """Write changed metadata; return the new version. None: somebody else has changed them."""
        try:
            return await self._nodes.set(self._path(ledger), encode_ledger_metadata(metadata), version=version)
        except ConditionFailedError:
            return None

    async def delete(self, ledger: int) -> None:
        try:
            await self._nodes.delete(self._path(ledger))
        except NotFoundError:
            return

    def _path(self, ledger: int) -> str:
        return f"{self._root}/{ledger_path(ledger)}"


def closed_at(metadata: LedgerMetadata, *, last: int, length_bytes: int) -> LedgerMetadata:
    """The metadata of the ledger once it ends with the entry ``last``."""
    return replace(metadata, state=LedgerState.CLOSED, last_entry=last, length_bytes=length_bytes)


def names_of(metadata: LedgerMetadata) -> Sequence[str]:
    """The bookies that hold the ledger's newest entries."""
    return metadata.ensembles[-1].bookies
