"""The fixed parts of the values of metadata rows: their structs, and the description of each field for the data
dictionary."""

from __future__ import annotations

from penstock.codec.dictionary import Layout

STORE = Layout("STORE", (("u8", "version, 1"), ("u16", "count of containers")))
CONTAINER = Layout(
    "CONTAINER",
    (
        ("u8", "version, 1"),
        ("u64", "epoch of the log when this was written"),
        ("u64", "log address up to which all rows are complete"),
    ),
)
WRITERS = Layout(
    "WRITERS",
    (
        ("u8", "version, 1"),
        ("u64", "age, seconds: how long the container was open in total"),
        (
            "i64",
            "floor, ms since the Unix epoch: an id of our own writers (design/0027) that was created before"
            " it and has no row is refused",
        ),
    ),
)
SEGMENT = Layout(
    "SEGMENT",
    (
        ("u8", "version, 2; in version 1 there is no kept offset: it equals the start offset"),
        ("u8", "0 plain, 1 hash table, 2 sorted table"),
        ("u8", "1: sealed"),
        ("u16", "length of keys, sorted tables only"),
        ("i64", "size at which chunks are rolled, 0 for the default"),
        ("i64", "start offset"),
        ("i64", "length; for a table: the position after the last change"),
        ("i64", "last modification, ms"),
        ("i64", "count of events"),
        ("i64", "bytes freed on disk so far"),
        ("i64", "count of entries, tables only"),
        ("i64", "kept offset: where the bytes on disk begin, at or before the start offset"),
    ),
    rest="name, UTF-8",
)
CHUNK = Layout(
    "CHUNK",
    (
        ("u8", "version, 3; 2 lacks the last field: no merge moved the chunk; 1 also lacks the count of events"),
        ("i64", "length: number of valid bytes in the file"),
        ("i64", "number of bytes freed at its head"),
        ("u32", "count of blocks"),
        ("i64", "count of events; -1: unknown, add up those of its blocks"),
        ("i64", "wall clock, ms, of the merge that moved the chunk to the segment; -1: no merge did"),
    ),
    rest="name of the chunk",
)
BLOCK = Layout(
    "BLOCK",
    (
        ("i64", "position in the chunk after its last byte"),
        ("i64", "count of events"),
        ("u32", "CRC32C of its bytes"),
        (
            "i64",
            "wall clock, ms, at which the first append in it was taken; this and the next are missing in rows of earlier"
            " versions",
        ),
        ("i64", "wall clock, ms, at which the last append in it was accepted"),
    ),
    notes="Bytes that a merge brought became part of the segment no earlier than the merge: of a chunk's time and its blocks'"
    " times the later counts.",
)
LEASE = Layout(
    "LEASE",
    (("i64", "wall clock, ms, when it ends"),),
    rest="a description of its holder, UTF-8; empty if none was given, and in rows of earlier versions",
)
FREE = Layout(
    "FREE",
    (("u64", "uid of the segment that named the chunk last"), ("i64", "bytes on disk")),
    rest="name of that segment, UTF-8; empty in rows of earlier versions",
)
FLUSHED = Layout("FLUSHED", (("u8", "version, 1"), ("i64", "count of events that are not tiered")))
CATALOGUE = Layout(
    "CATALOGUE",
    (
        ("u8", "version, 1"),
        ("u64", "number of the last batch"),
        ("u64", "epoch of the container's row in the same commit"),
        ("u64", "log address of that row: if the two differ, a program that makes no batches has written since"),
    ),
)
ERASED = Layout(
    "ERASED",
    (("u8", "version, 1"), ("u32", "count of ranges"), ("u32", "count of changes")),
    rest="ERASED CHANGE for each change, oldest first, then ERASED RANGES",
    notes="Bounds are positions in the chunk, half-open. A chunk with erased bytes was rewritten under a new name."
    " A range at the head of the chunk may be truncated data: there the payloads are zeros, and the"
    " headers are kept. Codec: `penstock.codec.store.erased`.\n\nERASED RANGES are, for each range in order, the gap after"
    " the end of the previous range and its length, as unsigned LEB128 numbers (seven bits a byte, the lowest first, the high"
    " bit set in all but the last byte).",
)
ERASED_CHANGE = Layout(
    "ERASED CHANGE",
    (
        ("i64", "start: after the bytes that nobody could read any more"),
        ("i64", "end"),
        ("i64", "bytes that this erasure was the first to blank"),
        ("32 bytes", "SHA-256 of the bytes from start to end, before the erasure"),
        ("32 bytes", "the same, after the erasure"),
        ("32 bytes", "the same without the ranges of this erasure, equal before and after"),
        ("u16", "length of the erasure's id"),
        ("u16", "length of the replaced chunk's name"),
    ),
    rest="id, name, UTF-8",
)
LAYOUTS = (STORE, CONTAINER, WRITERS, SEGMENT, CHUNK, BLOCK, LEASE, FREE, FLUSHED, CATALOGUE, ERASED, ERASED_CHANGE)
"""All of them, as the page lists them."""
