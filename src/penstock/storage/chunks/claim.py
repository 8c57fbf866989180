"""The claim of one store, and of one copy of that store, on a tier 2 outside its data directory.

Chunks that no row names are deleted as garbage. So two stores, or a store and its restored backup, would delete each
other's data if they shared a bucket or directory. A mark identifies the store; a record of each opening identifies the
copy that was there last. Conditional writes are not needed: each opening writes a unique name, then looks for others.

Source: docs/design/0013-object-tier.md, docs/formats/tier2.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec

from penstock.model.errors import CorruptDataError, InvalidArgumentError, StorageFullError, VersionTooNewError
from penstock.model.values.dataclass import dataclass
from penstock.ports.files import Files
from penstock.ports.objects import Objects
from penstock.ports.rng import Rng
from penstock.storage.objects.file_objects import FileObjects

_log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MARK = "STORE"
OWNERS = "owners"
RECORD = "tier2.json"
_REMEMBERED = 16  # own openings that the record keeps
_MARK_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRecord:
    """What a data directory records about its tier 2.

    ``place`` is a URL or a path. ``claimed``: an opening has succeeded, so chunks may be there. ``openings``: the names
    of our own last openings, oldest first, including those that may not have been written.
    """

    store: str
    place: str
    endpoint: str | None
    claimed: bool
    openings: tuple[str, ...]


async def load_record(files: Files) -> TierRecord | None:
    """The record in the data directory, or None if the chunks are inside that directory. Raises CorruptDataError,
    VersionTooNewError."""
    objects = FileObjects(files)
    try:
        data = await objects.read(RECORD, 0, 1 << 20)
    except FileNotFoundError:
        return None
    found = _parsed(data, RECORD)
    try:
        return msgspec.convert(found, TierRecord)
    except msgspec.ValidationError as error:
        raise CorruptDataError("record of tier 2 cannot be read", file=RECORD) from error


async def claim_tier(objects: Objects, files: Files, *, place: str, endpoint: str | None, rng: Rng) -> TierRecord:
    """Check that ``objects`` belongs to this data directory alone, and write the claim there.

    Returns the record as it now is in the data directory. Raises InvalidArgumentError and changes nothing if
    ``objects`` belongs to another store or another copy of this one, or if our chunks are elsewhere. Raises what
    ``objects`` raises. If our own tier 2 is full, the claim of the last opening is kept.
    """
    record, owners, is_new = await examine_tier(objects, files, place=place)
    if record is None:
        record = TierRecord(store=rng.uuid().hex, place=place, endpoint=endpoint, claimed=False, openings=())
    return await _enter(objects, files, replace(record, place=place, endpoint=endpoint), owners, rng, new=is_new)


async def tier_mark(objects: Objects) -> str | None:
    """The store that the mark in ``objects`` names; None: there is no mark. Raises CorruptDataError, VersionTooNewError."""
    return await _mark(objects)


async def adopt_tier(objects: Objects, files: Files, *, store: str, place: str, endpoint: str | None) -> None:
    """Write a record into the data directory that lets it claim ``objects``, which has the mark ``store`` or none yet, from
    the copy that was there last. The caller makes sure that this copy deletes nothing any more. Raises what ``objects``
    raises."""
    claimed = await _mark(objects) is not None
    openings = tuple(sorted(await objects.list(OWNERS)))
    await _save(files, TierRecord(store=store, place=place, endpoint=endpoint, claimed=claimed, openings=openings))


async def bind_tier(objects: Objects, files: Files, *, store: str, place: str, endpoint: str | None) -> None:
    """Bind the data directory to ``objects`` without a claim: something else decides who owns it. Writes the mark ``store``
    if there is none. Raises InvalidArgumentError (another store's), and what ``objects`` raises."""
    mark = await _mark(objects)
    if mark not in (None, store):
        raise InvalidArgumentError("tier 2 belongs to another store", tier2=place, store=mark, own=store)
    if mark is None:
        await objects.put(MARK, _encoded({"store": store}))
    record = TierRecord(store=store, place=place, endpoint=endpoint, claimed=True, openings=())
    if await load_record(files) != record:
        await _save(files, record)


async def reserve_tier(files: Files, *, place: str, endpoint: str | None, rng: Rng) -> str:
    """The mark that the store of the data directory has in its tier 2, drawn before the first claim."""
    record = await load_record(files)
    if record is None:
        record = TierRecord(store=rng.uuid().hex, place=place, endpoint=endpoint, claimed=False, openings=())
        await _save(files, record)
    return record.store


async def examine_tier(objects: Objects, files: Files, *, place: str) -> tuple[TierRecord | None, Sequence[str], bool]:
    """Check what ``claim_tier`` checks, without a claim. Returns the record, the names of openings in ``objects``, and
    whether ``objects`` still lacks a mark. Changes nothing."""
    record = await load_record(files)
    mark = await _mark(objects)
    owners = list(await objects.list(OWNERS))
    if record is None:
        if mark is not None or owners:
            raise InvalidArgumentError(
                "tier 2 belongs to another store. For a new store, name an unused prefix or directory. To continue a store"
                " whose log is on BookKeeper or in tier 2, use --take-over",
                tier2=place,
                store=mark,
            )
        if await objects.list("chunks"):
            raise InvalidArgumentError("tier 2 holds chunks of an unknown store; choose an unused prefix", tier2=place)
        return None, owners, True
    if mark is None and record.claimed:
        raise InvalidArgumentError(
            "tier 2 lacks the chunks of this store; check the mount and the prefix",
            tier2=place,
            last_used=record.place,
        )
    if mark not in (None, record.store):
        raise InvalidArgumentError("tier 2 belongs to another store", tier2=place, store=mark, own=record.store)
    _refuse_strangers(owners, record, place)
    return record, owners, mark is None


async def _enter(
    objects: Objects, files: Files, record: TierRecord, owners: Sequence[str], rng: Rng, *, new: bool
) -> TierRecord:
    """Write our own name, then look again: of two concurrent openings, at least one sees the other."""
    number = max((_number(name) for name in record.openings), default=0) + 1
    own = f"{OWNERS}/{number:08x}-{rng.uuid().hex}"
    record = replace(record, openings=(*_openings_to_keep(record, owners), own))
    # Record it here first: a name that we do not recognize as ours would lock us out.
    await _save(files, record)
    try:
        await objects.put(own, _encoded({"store": record.store}))
    except StorageFullError:
        if new:
            raise
        # Its chunks must stay readable, and only truncation frees space. The name of the last opening still identifies us.
        _log.warning("tier 2 is full, the claim of the last opening is kept", extra={"tier2": record.place})
        return record
    owners = list(await objects.list(OWNERS))
    try:
        _refuse_strangers(owners, record, record.place)
    except InvalidArgumentError:
        await objects.delete(own)
        raise
    if new:
        await objects.put(MARK, _encoded({"store": record.store}))
    record = replace(record, claimed=True)
    await _save(files, record)
    for name in owners:
        if name != own:
            await objects.delete(name)
    return record


def _openings_to_keep(record: TierRecord, owners: Sequence[str]) -> Sequence[str]:
    """Our openings to keep: all that are in tier 2, no matter how many attempts failed since, and the last of the
    others, which may still arrive there."""
    others = [name for name in record.openings if name not in owners][1 - _REMEMBERED :]
    return [name for name in record.openings if name in owners or name in others]


def _refuse_strangers(owners: list[str], record: TierRecord, place: str) -> None:
    strangers = [name for name in owners if name not in record.openings]
    if strangers:
        raise InvalidArgumentError(
            "tier 2 was opened by another copy of this store: this copy is old, and would delete the other's chunks as "
            "garbage. To get an independent store, use `penstock restore` with a backup. A store with its log on "
            "BookKeeper or in tier 2 is brought back here with --take-over. Otherwise, if the other copy no longer "
            "exists, delete the object named here",
            tier2=place,
            object=strangers[-1],
        )


def parse_mark(data: bytes) -> str:
    """The store that a mark with these bytes names. Raises CorruptDataError, VersionTooNewError."""
    return str(_parsed(data, MARK).get("store"))


async def _mark(objects: Objects) -> str | None:
    try:
        data = await objects.read(MARK, 0, _MARK_MAX_BYTES)
    except FileNotFoundError:
        return None
    return parse_mark(data)


async def _save(files: Files, record: TierRecord) -> None:
    await FileObjects(files).put(RECORD, _encoded(asdict(record)))


def _number(name: str) -> int:
    try:
        return int(name.removeprefix(f"{OWNERS}/").partition("-")[0], 16)
    except ValueError as error:
        raise CorruptDataError("record of tier 2 cannot be read", file=RECORD, opening=name) from error


def _encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT_VERSION, **fields}, indent=1).encode() + b"\n"


def _parsed(data: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
        version = int(found["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("mark of tier 2 cannot be read", file=name) from error
    if version > FORMAT_VERSION:
        raise VersionTooNewError("tier 2 was written by a newer version", file=name, version=version)
    return dict(found)
