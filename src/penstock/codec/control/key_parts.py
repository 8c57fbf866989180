"""Parts of the keys of the controller's table, for the data dictionary."""

from __future__ import annotations

from penstock.codec.dictionary import Part

PARTS = {
    "request": Part(pattern="[0-9a-f]{16}", meaning="a request for approval, 16 hexadecimal digits"),
    "target": Part(pattern=".*", meaning="scope/stream, a scope, or empty for the server"),
    "scope": Part(pattern="[^/]+", meaning="name of a scope"),
    "stream": Part(pattern="[^/]+", meaning="name of a stream in the scope"),
    "group": Part(pattern="[^/]+/[^/]+", meaning="full name of a reader group: scope, slash, name"),
    "epoch": Part(pattern=r"\d{10}", meaning="an epoch of the stream, 10 decimal digits"),
    "txn": Part(pattern="[0-9a-f]{32}", meaning="a transaction, 32 hexadecimal digits"),
    "share": Part(pattern="[0-9a-f]{32}", meaning="the key under which writers share a transaction, 32 hexadecimal digits"),
    "time": Part(pattern="[0-9a-f]{16}", meaning="milliseconds by the retention clock, 16 hexadecimal digits"),
    "newest": Part(
        pattern="[0-9a-f]{16}", meaning="2^63 - 1 minus a wall clock time in milliseconds, 16 hexadecimal digits"
    ),
    "incarnation": Part(pattern="[0-9a-f]{16}", meaning="number of the stream's first segment, 16 hexadecimal digits"),
    "place": Part(pattern="[0-9a-f]{16}", meaning="place in the queue, 16 hexadecimal digits"),
    "writer": Part(pattern=".+", meaning="name of a writer; it may hold slashes"),
    "reader": Part(pattern=".+", meaning="name of a reader in the group; it may hold slashes"),
    "byte": Part(pattern="[0-9a-f]{2}", meaning="first byte of the SHA-256 of the names, 2 hexadecimal digits"),
    "hold": Part(pattern="[^/]+", meaning="id of a hold"),
    "bucket": Part(pattern=r"\d{5}", meaning="number of a bucket, 5 decimal digits"),
    "controller": Part(pattern="[^/]+", meaning="id of a controller"),
    "life": Part(pattern="[0-9a-f]{32}", meaning="one run of a controller, 32 hexadecimal digits"),
    "number": Part(pattern="[0-9a-f]{16}", meaning="number of an entry in that run, 16 hexadecimal digits"),
    "log": Part(pattern="[0-9a-f]{32}", meaning="an audit log: the end of its name, 32 hexadecimal digits"),
    "size": Part(pattern="[0-9a-f]{16}", meaning="entries of the log, 16 hexadecimal digits"),
    "tile": Part(pattern="[0-9a-f]{16}", meaning="number of a tile, 16 hexadecimal digits"),
    "erasure": Part(pattern="[^/]+", meaning="id of an erasure"),
    "case": Part(pattern="[^/]+", meaning="id of a case of erasure"),
    "run": Part(
        pattern="(?:[0-9a-f]{32}/)?", meaning="a run that gathers positions, 32 hexadecimal digits and a slash; none in"
        " keys of earlier versions"
    ),
    "page": Part(pattern=r"\d{8}", meaning="number of a page, 8 decimal digits"),
    "segment": Part(pattern="[0-9a-f]{16}", meaning="id of a segment, 16 hexadecimal digits"),
    "row": Part(pattern=".+", meaning="the key that the row had, without the stream's name"),
}  # fmt: skip
"""Parts of keys. All numbers are padded, so that key order is numeric order."""
