"""Decide how long the last batch of a writer is remembered, so that a repeated commit changes nothing.

A name that belongs to a checkpoint, an application or a person may come back at any time. Its record stays while it is used,
and for 100 days after that. Then only a digest of the name stays, and a batch under it is refused. A plain job
generates a name for its one batch, and nobody can use that name again once the job has ended. So only the latest job records
are kept. The record says which kind it is, because a person may choose any name.
Source: docs/design/0038-what-grows.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from penstock.codec.control.streams import BatchRecord

JOBS_KEPT = 1000
"""Number of jobs of one stream that are remembered after their commit. A job repeats its commit for minutes at most."""


NAMES_KEPT = 1000
"""Number of other names of one stream whose records always stay: the last ones that were used."""

NAME_KEPT_MS = 100 * 86_400_000
"""How long a record stays at least after its last use, milliseconds of the retention clock: longer than a quarter."""

_DIGEST_BYTES = 8


def name_digest(writer: str) -> bytes:
    """What stays of a forgotten name. The chance that a new name has the digest of one of a million others is one in 10^13.
    Then it is refused, and the caller must choose another name."""
    return hashlib.sha256(writer.encode()).digest()[:_DIGEST_BYTES]


def names_to_forget(
    records: Sequence[tuple[str, int, BatchRecord]], *, now_ms: int, kept: int = NAMES_KEPT
) -> list[str]:
    """Choose which of the stream's names, those of jobs left out, to forget.

    Args:
        records: Writer, version of its record (the larger, the later it was used), and the record.
        now_ms: The retention clock.
    """
    names = sorted((item for item in records if not item[2].one_job), key=lambda item: item[1])
    return [
        writer
        for writer, _, record in names[: max(0, len(names) - kept)]
        if record.at_ms is not None and record.at_ms + NAME_KEPT_MS <= now_ms
    ]


def is_forgettable(known: BatchRecord | None, *, one_job: bool) -> bool:
    """Whether a commit leaves a record that may be forgotten.

    Args:
        known: The record so far. If the name was used otherwise, it stays.
        one_job: Whether the caller generated the name for this one batch.
    """
    return one_job and (known is None or known.one_job or (known.batch < 0 and not known.query))


def jobs_to_forget(records: Sequence[tuple[str, int]], *, kept: int = JOBS_KEPT) -> list[str]:
    """Choose which of the stream's jobs to forget.

    Args:
        records: Each job's writer, and the version of its record: the larger, the later it committed.
    """
    jobs = sorted((version, writer) for writer, version in records)
    return [writer for _, writer in jobs[: max(0, len(jobs) - kept)]]
