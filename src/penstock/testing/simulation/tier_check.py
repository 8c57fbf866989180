"""Check tier 2 at the end of a run: no chunk is leaked or missing, sidecars describe every block, and the catalogue
restores all metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from crc32c import crc32c

from penstock.codec.store import rows as records
from penstock.codec.store.chunk_index import SUFFIX, decode_records, index_name
from penstock.core.segments.garbage import is_marker
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.segmentstore.repair.rebuild import list_catalogue, load_container
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.testing.simulation.actors import Env

_ALL = 1 << 30  # rows or bytes; more than any run has
_TRIES = 20  # flushes; enough for a catalogue to catch up
_LEAK_S = 60.0
"""Longer than the lease of a transaction, and than the interval between two searches for unadopted chunks."""


async def check_leaks(env: Env) -> None:
    """Before a restart: unreferenced chunks are deleted once no open transaction can adopt them."""
    last = env.loop.time() + _LEAK_S
    while True:
        node = env.cluster.serving()
        for _ in range(2):
            await node.call(node.store.flush)
        listed = await node.call(node.chunks.list)
        rows = await _chunk_rows(env)
        left = _unnamed(listed, rows)
        if not left:
            return
        if env.loop.time() > last:
            env.history.violation("leaked chunk", f"{left[:5]} of {len(listed)} files, before a restart")
            return
        await asyncio.sleep(5.0)


def _unnamed(listed: Sequence[str], rows: Mapping[str, records.ChunkRecord]) -> list[str]:
    return [name for name in listed if name.removesuffix(SUFFIX) not in rows and not is_marker(name)]


async def check_chunks(env: Env) -> None:
    """Tier and checkpoint everything. Then the files must be exactly those that the rows name."""
    node = env.cluster.serving()
    for _ in range(3):
        # Chunks that one flush releases are deleted by the next one.
        await node.call(node.store.flush)
    listed = await node.call(node.chunks.list)
    rows = await _chunk_rows(env)
    left = _unnamed(listed, rows)
    if left:
        env.history.violation("leaked chunk", f"{left[:5]} of {len(listed)} files")
    for name, row in sorted(rows.items()):
        await _check_sidecar(env, name, row)
    for container in node.store.containers:
        await _check_catalogue(env, container.index)


async def _check_catalogue(env: Env, index: int) -> None:
    """The catalogue in tier 2 restores exactly the committed rows, except those that concern only this copy."""
    for _ in range(_TRIES):
        node = env.cluster.serving()
        await node.call(node.store.flush)
        names = (await node.call(partial(list_catalogue, node.objects))).get(index, [])
        keyvalue = MemoryKeyValue()
        state = await node.call(partial(load_container, node.objects, index, names, keyvalue))
        # Do not await from here on, because other work could commit again.
        committed = env.cluster.rows.entries
        row = committed.get(records.prefix(records.TAG_CATALOGUE, index))
        if row is None or records.decode_catalogue(row).sequence != state.applied:
            continue
        own = {key: value for key, value in committed.items() if _is_catalogued(key, index)}
        given = dict(await keyvalue.scan(b"", b"\xff" * 64, limit=_ALL))
        if own != given or state.damage:
            differing = sorted(key for key in {*own, *given} if own.get(key) != given.get(key))
            env.history.violation(
                "catalogue differs", f"container {index}: {len(differing)} rows, {differing[:3]}, {state.damage[:3]}"
            )
        return
    env.history.violation("catalogue behind", f"container {index}: not caught up by {_TRIES} flushes")


def _is_catalogued(key: bytes, index: int) -> bool:
    return key[0] in records.CATALOGUED and key[1:3] == index.to_bytes(2, "big")


async def _chunk_rows(env: Env) -> dict[str, records.ChunkRecord]:
    node = env.cluster.serving()
    found: dict[str, records.ChunkRecord] = {}
    for container in node.store.containers:
        bounds = records.range_of(records.prefix(records.TAG_CHUNK, container.index))
        for _, value in await node.call(partial(container.rows.scan_all, bounds)):
            record = records.decode_chunk(value)
            found[record.name] = record
    return found


async def _check_sidecar(env: Env, chunk: str, row: records.ChunkRecord) -> None:
    """The sidecar lists every block of a chunk, with the right checksum, for tools that read the files alone."""
    node = env.cluster.serving()
    try:
        data = await node.call(partial(node.chunks.read, chunk, 0, _ALL))
        index = await node.call(partial(node.chunks.read, index_name(chunk), 0, _ALL))
    except NotFoundError as error:
        env.history.violation("missing file", f"{chunk}: {error}")
        return
    punched = env.cluster.disk.punched(f"chunks/{chunk}")
    covered = _vouched_bytes(data, index, punched)
    if covered < row.length:
        env.history.violation("sidecar incomplete", f"{chunk}: {covered} of {row.length} bytes")


def _vouched_bytes(data: bytes, index: bytes, punched: Sequence[tuple[int, int]]) -> int:
    """Bytes of a chunk that its sidecar describes correctly. The freed head is not checked: a crash may have lost the
    row that records it, which is harmless."""
    covered = 0
    try:
        for record in decode_records(index):
            block = data[record.start : record.end]
            whole = all(end <= record.start or start >= record.end for start, end in punched)
            if whole and crc32c(block) != record.crc32c:
                break
            covered = record.end
    except CorruptDataError:
        return covered
    return covered
