"""The rows of the containers, for the data dictionary. ``layouts`` has the fields of their values."""

from __future__ import annotations

from penstock.codec.dictionary import Entry, Part
from penstock.codec.store import layouts

PARTS = {
    "container": Part(pattern="..", meaning="number of the container, u16"),
    "uid": Part(pattern=".{8}", meaning="uid of a segment, u64"),
    "id": Part(pattern=".{16}", meaning="id of a writer or of an attribute, 16 bytes"),
    "number": Part(pattern=".{8}", meaning="offset, version, position, log address or time in ms, u64"),
    "lease": Part(pattern=".{16}", meaning="id of a lease, 16 bytes"),
    "name": Part(pattern=".+", meaning="name of a segment, UTF-8"),
    "chunk": Part(pattern=r"[^\0]+", meaning="name of a chunk, UTF-8"),
    "key": Part(pattern=".*", meaning="key of a table entry"),
    "zero": Part(pattern=r"\0", meaning="a zero byte"),
    "tag": Part(pattern="[nso]", meaning="tag of the row that is repeated"),
    "rest": Part(pattern=".*", meaning="the rest of that row's key, after the container"),
    "row": Part(pattern=".+", meaning="whole key of a row"),
}
"""Parts of keys. Integers are big-endian and unsigned, so that key order is numeric order."""

_RECOVERY = "segmentstore.durability.recovery"
_CHECKPOINT = "segmentstore.durability.checkpointer"
_TRANSITIONS = "segmentstore.transitions"
_TIER_WRITER = "segmentstore.tiering.tier_writer"
_RECLAIMER = "segmentstore.tiering.reclaimer"
_ERASER = "segmentstore.erasure.eraser"
_FLUSHED = "segmentstore.tiering.flushed"
_CATALOGUE = "segmentstore.tiering.catalogue"
_ASIDE = "segmentstore.repair.set_aside"
_WITH_SEGMENT = "the deletion of the segment"
_WITH_CHUNK = "the chunk's file is deleted, or another chunk replaces it"

ROWS = (
    Entry(key="S", value=layouts.STORE, one_for="the store itself", writers=(_RECOVERY,), ends="nothing"),
    Entry(
        key="S+",
        value=layouts.STORE,
        one_for="a copy of it, read if the first is damaged",
        writers=(_RECOVERY,),
        ends="nothing",
    ),
    Entry(
        key="c{container}",
        value=layouts.CONTAINER,
        one_for="each container: its checkpoint",
        writers=(_CHECKPOINT,),
        ends="nothing",
    ),
    Entry(
        key="c{container}+",
        value=layouts.CONTAINER,
        one_for="a copy of it; stores of earlier versions get it at the first checkpoint",
        writers=(_CHECKPOINT,),
        ends="nothing",
    ),
    Entry(
        key="n{container}{name}",
        value="u64 uid",
        one_for="each segment, by name",
        writers=(_TRANSITIONS,),
        ends=_WITH_SEGMENT,
    ),
    Entry(
        key="s{container}{uid}",
        value=layouts.SEGMENT,
        one_for="each segment",
        writers=(_CHECKPOINT,),
        ends=_WITH_SEGMENT,
    ),
    Entry(
        key="a{container}{uid}{id}",
        value="i64 value; for a writer also u32: the age of the container when the row was written, seconds",
        one_for="each writer's last event number, and each attribute of a segment",
        writers=(_CHECKPOINT,),
        ends="long silence of the writer (not in rows without an age: attributes, and writers of earlier versions), or"
        f" {_WITH_SEGMENT}",
    ),
    Entry(
        key="o{container}",
        value=layouts.WRITERS,
        one_for="each container: its age, and the floor for ids of writers",
        writers=("segmentstore.writer_memory",),
        ends="nothing",
    ),
    Entry(
        key="k{container}{uid}{number}",
        value=layouts.CHUNK,
        one_for="each chunk of a segment; the number is the offset at which it begins",
        writers=(_TIER_WRITER, _TRANSITIONS, _ERASER, _RECLAIMER),
        ends=f"all of its bytes are truncated, or {_WITH_SEGMENT}",
    ),
    Entry(
        key="b{container}{chunk}{zero}{number}",
        value=layouts.BLOCK,
        one_for="each block of a chunk; the number is its position in the chunk",
        writers=("segmentstore.tiering.blocks",),
        ends=_WITH_CHUNK,
    ),
    Entry(
        key="t{container}{uid}{key}",
        value="i64 version, then the value",
        one_for="each entry of a table segment",
        writers=("segmentstore.calls.tables", _TRANSITIONS),
        ends="the removal of the entry, or the deletion of the table",
    ),
    Entry(
        key="v{container}{uid}{number}",
        value="the key",
        one_for="each version that a key of a hash table has: its last change",
        writers=("segmentstore.calls.tables", _TRANSITIONS),
        ends="the next change of the key, or the deletion of the table",
    ),
    Entry(
        key="p{container}{chunk}",
        value=layouts.FREE,
        one_for="each chunk that no segment names and whose file is to be deleted",
        writers=(_RECLAIMER,),
        ends="the file is deleted",
    ),
    Entry(
        key="w{container}{chunk}",
        value="nothing",
        one_for="each chunk that held erased bytes: its file is overwritten before it is deleted, even if it is leased",
        writers=(_RECLAIMER,),
        ends="the file is deleted",
    ),
    Entry(
        key="l{container}{lease}{uid}",
        value=layouts.LEASE,
        one_for="each lease of a segment",
        writers=("segmentstore.tiering.leases",),
        ends="its release or its end",
    ),
    Entry(
        key="L{container}",
        value="nothing",
        one_for="each container whose leases are all in the log and in the catalogue of tier 2",
        writers=("segmentstore.tiering.leases",),
        ends="nothing",
    ),
    Entry(
        key="N{container}{uid}",
        value="name of the segment, UTF-8",
        one_for="each segment that was deleted or merged while a lease was on it; missing if an earlier version did so",
        writers=("segmentstore.tiering.leases",),
        ends="the end of the last lease on it",
    ),
    Entry(
        key="m{container}{uid}{name}",
        value="i64 wall clock, ms",
        one_for="each finished merge into the segment, by the name of its source",
        writers=(_TRANSITIONS,),
        ends=f"a day passes, or {_WITH_SEGMENT}",
    ),
    Entry(
        key="x{container}{number}{uid}{name}",
        value="nothing",
        one_for="the same by age; the number is the wall clock, ms",
        writers=(_TRANSITIONS,),
        ends="the same step",
    ),
    Entry(
        key="f{container}{uid}",
        value=layouts.FLUSHED,
        one_for="each segment with bytes that are not tiered: their number of events",
        writers=(_FLUSHED,),
        ends="all of its bytes are tiered",
    ),
    Entry(
        key="f{container}{uid}{id}",
        value="i64 last event number before those bytes; -2^63: none",
        one_for="each of their writers",
        writers=(_FLUSHED,),
        ends="the same",
    ),
    Entry(
        key="j{container}{number}",
        value="a batch (catalogue.md)",
        one_for="each commit that the catalogue of tier 2 does not have",
        writers=(_CATALOGUE,),
        ends="a journal or a snapshot in tier 2 has it",
    ),
    Entry(
        key="g{container}",
        value=layouts.CATALOGUE,
        one_for="each container with a catalogue: the last batch that was made",
        writers=(_CATALOGUE,),
        ends="nothing",
    ),
    Entry(
        key="e{container}{chunk}",
        value=layouts.ERASED,
        one_for="each chunk that holds erased bytes",
        writers=(_ERASER,),
        ends=_WITH_CHUNK,
    ),
    Entry(
        key="d{container}{uid}",
        value="i64 log address up to which the rows of the segment were complete",
        one_for="each segment that was set aside because one of its rows is damaged",
        writers=(_ASIDE,),
        ends="a rebuild of the segment",
    ),
    Entry(
        key="d{container}{uid}{number}",
        value="a frame of the log (operations.md); appended bytes that may already be tiered have writer 0",
        one_for="each frame, by log address, with changes to such a segment",
        writers=(_ASIDE,),
        ends="the same",
    ),
    Entry(
        key="y{container}{tag}{rest}",
        value="the same as in that row",
        one_for="a copy, read if the row is damaged: of the `n` and `s` rows of each table, without which nothing can be"
        " found, and of the `o` row, without which a forgotten writer could be taken for a new one",
        writers=(_CHECKPOINT, _TRANSITIONS, "segmentstore.writer_memory"),
        ends="the same step as the row",
    ),
    Entry(
        key="q{container}{row}",
        value="nothing",
        one_for="each row that a snapshot lacks because it was damaged; only in snapshots of the catalogue",
        writers=(_CATALOGUE,),
        ends="the next snapshot",
    ),
)
"""All rows, as the page lists them."""
