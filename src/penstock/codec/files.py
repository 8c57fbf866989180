"""The files of a data directory and the store's own segments, for the data dictionary."""

from __future__ import annotations

from penstock.codec.dictionary import Entry, Part

PARTS = {
    "container": Part(pattern=r"\d+", meaning="number of a container"),
    "number": Part(pattern=r"[0-9a-f]{8}", meaning="number of a log file, or of an opening, 8 hexadecimal digits"),
    "nonce": Part(pattern="[0-9a-f]{32}", meaning="32 random hexadecimal digits"),
    "chunk": Part(pattern=r"[0-9a-z]+-[0-9a-f]+-[0-9a-f]+(?:-[0-9a-f]+)?", meaning="name of a chunk (chunk-index.md)"),
    "batches": Part(pattern="[0-9a-f]{16}-[0-9a-f]{16}-[0-9a-f]{16}", meaning="first and last batch, and the run"),
    "part": Part(pattern="[0-9a-f]{6}-(?:part|end)", meaning="number of an object, and whether it is the last"),
    "public": Part(pattern="[0-9a-f]{64}", meaning="the public part of the key, 64 hexadecimal digits"),
    "scope": Part(pattern="[^/]+", meaning="name of a scope"),
    "stream": Part(pattern="[^/]+", meaning="name of a stream"),
    "group": Part(pattern="[^/]+", meaning="name of a reader group"),
    "segment": Part(pattern=r"\d+\.#epoch\.\d+", meaning="number and epoch of a segment"),
}

FILES = (
    Entry(
        key="VERSION",
        value="text: `1 new` until the first start has created everything, then `1`",
        one_for="each data directory",
        writers=("storage.machine.data_directory",),
        ends="nothing",
    ),
    Entry(
        key="LOCK",
        value="nothing; the process that has the directory open locks it",
        one_for="each data directory",
        writers=("storage.machine.data_directory",),
        ends="nothing",
    ),
    Entry(
        key="RESERVE",
        value="zeros: reserved space for a start on a full disk",
        one_for="each data directory",
        writers=("storage.machine.reserve",),
        ends="a start that finds no space; created again later",
    ),
    Entry(
        key="audit-keys/{public}.key",
        value="text: the private key that signs the audit log, 64 hexadecimal digits ([evidence.md](evidence.md)); mode 0600",
        one_for="the controller, once it has signed anything; backups do not have it",
        writers=("storage.machine.signing_keys",),
        ends="the rotation of the key",
    ),
    Entry(
        key="metadata/store.db",
        value="the rows of the containers, in SQLite; with `-wal` and `-shm` while it is open, `.new` until it is created",
        one_for="each data directory",
        writers=("storage.rows.sqlite_keyvalue",),
        ends="nothing",
    ),
    Entry(
        key="wal/EPOCH",
        value="the epoch of the log ([wal.md](wal.md))",
        one_for="each log",
        writers=("storage.log.epoch",),
        ends="nothing",
    ),
    Entry(
        key="wal/EPOCH.tmp",
        value="reserved space for the next `EPOCH`, so that a full disk does not prevent an opening",
        one_for="each log",
        writers=("storage.log.epoch",),
        ends="nothing",
    ),
    Entry(
        key="wal/BOOKKEEPER",
        value="JSON, if the log is on BookKeeper ([ledger-log.md](ledger-log.md)) and not in `wal/`: `uid` and `url` of the"
        " log; `home`, drawn for this directory; `loading`, while a takeover is not complete; `hold_s`, for how much"
        " longer no chunk is freed after it, in seconds of serving",
        one_for="the store",
        writers=("app.replicated.log_place",),
        ends="nothing",
    ),
    Entry(
        key="wal/{number}.log",
        value="frames ([wal.md](wal.md)) of operations ([operations.md](operations.md))",
        one_for="each file of the log; files are reused",
        writers=("storage.log.local_log", "storage.log.pool"),
        ends="the files exceed the budget of the log, or a later opening finds the file free",
    ),
    Entry(
        key="chunks/{container}/{chunk}",
        value="raw bytes of a segment",
        one_for="each chunk; in tier 2",
        writers=("storage.chunks.file_chunks", "storage.chunks.object_chunks", "storage.chunks.imports"),
        ends="a checkpoint has recorded that no segment names it, and no lease covers it",
    ),
    Entry(
        key="chunks/{container}/{chunk}.idx",
        value="a record for each block ([chunk-index.md](chunk-index.md))",
        one_for="each chunk",
        writers=("storage.chunks.file_chunks", "storage.chunks.object_chunks", "storage.chunks.imports"),
        ends="the deletion of the chunk",
    ),
    Entry(
        key="catalogue/{container}/j-{batches}",
        value="a journal: batches of changed rows ([catalogue.md](catalogue.md))",
        one_for="each journal; in tier 2",
        writers=("segmentstore.tiering.catalogue",),
        ends="a longer journal or a snapshot holds the same",
    ),
    Entry(
        key="catalogue/{container}/s-{batches}-{part}",
        value="part of a snapshot of the rows ([catalogue.md](catalogue.md))",
        one_for="each object of a snapshot; in tier 2",
        writers=("segmentstore.tiering.catalogue",),
        ends="a later snapshot is complete",
    ),
    Entry(
        key="STORE",
        value="JSON: the store that the place belongs to ([tier2.md](tier2.md))",
        one_for="each tier 2 outside the data directory",
        writers=("storage.chunks.claim",),
        ends="nothing",
    ),
    Entry(
        key="owners/{number}-{nonce}",
        value="JSON: an opening ([tier2.md](tier2.md))",
        one_for="the last opening of such a tier 2",
        writers=("storage.chunks.claim",),
        ends="the next opening",
    ),
    Entry(
        key="tier2.json",
        value="JSON: where tier 2 is, and our openings ([tier2.md](tier2.md))",
        one_for="each data directory with tier 2 outside it",
        writers=("storage.chunks.claim",),
        ends="nothing",
    ),
    Entry(
        key="workers.json",
        value="JSON: workers and containers; the data of worker `n` is in `workers/n/` ([workers.md](workers.md))",
        one_for="each data directory of several workers",
        writers=("app.workers.layout",),
        ends="nothing",
    ),
    Entry(
        key="restored.json",
        value="JSON: the time of the backup, and how many segment numbers to skip ([backup.md](backup.md))",
        one_for="each directory that was restored or rebuilt, until its first start",
        writers=("app.restored",),
        ends="the end of the first start",
    ),
    Entry(
        key="erasure.key",
        value="the key of digests in cases of erasure: 32 bytes as hex and a line feed; mode 0600",
        one_for="each data directory",
        writers=("app.erasure.key",),
        ends="nothing",
    ),
    Entry(
        key="erasures.ledger",
        value="a ledger of erasures ([cases.md](cases.md)), JSON lines",
        one_for="each directory that was restored or rebuilt with a ledger, until its first start",
        writers=("app.erasure.ledger",),
        ends="the first start, once all is erased",
    ),
    Entry(
        key="erasures.ledger.keys",
        value="public keys that may have signed the ledger, one a line",
        one_for="each such directory whose restore or rebuild was given a public key",
        writers=("app.erasure.ledger",),
        ends="the first start, once all is erased",
    ),
    Entry(
        key="MANIFEST.json",
        value="JSON: the contents of the backup ([backup.md](backup.md)); its files are in `data/`",
        one_for="each backup",
        writers=("app.backup.manifest",),
        ends="nothing",
    ),
)
"""Paths below the data directory, below tier 2, or in a backup."""

SEGMENTS = (
    Entry(
        key="_system/_tables/controller",
        value="the controller's table, above",
        one_for="the store",
        writers=("controller.metadata",),
        ends="nothing",
    ),
    Entry(
        key="_system/_tables/keyvaluetables",
        value="a record for each key-value table of a user ([native-api.md](native-api.md))",
        one_for="the store, once it has such a table",
        writers=("controller.tables.key_value_tables",),
        ends="nothing",
    ),
    Entry(
        key="_system/_tables/pulsar",
        value="JSON: tenants, namespaces and topics as created through the Pulsar admin API",
        one_for="the store, once that API was used",
        writers=("net.http.pulsar.records",),
        ends="nothing",
    ),
    Entry(
        key="_system/audit/{segment}",
        value="the audit stream ([audit.md](audit.md))",
        one_for="the store",
        writers=("controller.retention.audit",),
        ends="entries: 7 years after they were written, or as its policy says; the stream: nothing",
    ),
    Entry(
        key="_system/erasures/{segment}",
        value="the erasure feed ([erasure-feed.md](erasure-feed.md))",
        one_for="the store",
        writers=("controller.erasure.feed",),
        ends="events: 7 years after they were written, or as its policy says; the stream: nothing",
    ),
    Entry(
        key="{scope}/_GROUP{group}/{segment}",
        value="a table: under `state` the positions and readers of the group (JSON), under `group/ID` its id",
        one_for="each reader group of our own clients",
        writers=("client.reading.group_table",),
        ends="the deletion of the group",
    ),
    Entry(
        key="{scope}/_MARK{stream}/{segment}",
        value="the stream's watermarks, as events in Pravega's form (`codec/watermarks.py`)",
        one_for="each stream",
        writers=("controller.streams.updates", "controller.watermarks.mark_segment"),
        ends="the deletion of the stream",
    ),
)
"""Segments that the store creates for its own use."""
