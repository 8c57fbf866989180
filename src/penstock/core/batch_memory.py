"""Decide how long the last batch of a writer is remembered, so that a repeated commit changes nothing.

A name that belongs to a checkpoint, an application or a person may come back at any time. Its record stays as long as the
stream. A plain job generates a name for its one batch, and nobody can use that name again once the job has ended. So only
the latest job records are kept. The record says which kind it is, because a person may choose any name.
Source: docs/design/0006-controller.md, "What grows".
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.metadata import BatchRecord

JOBS_KEPT = 1000
"""Number of jobs of one stream that are remembered after their commit. A job repeats its commit for minutes at most."""


def is_forgettable(known: BatchRecord | None, *, one_job: bool) -> bool:
    """Whether a commit leaves a record that may be forgotten.

    Args:
        known: The record so far. If the name was used otherwise, it stays.
        one_job: Whether the caller says that it generated the name for this one batch.
    """
    return one_job and (known is None or known.one_job or (known.batch < 0 and not known.query))


def jobs_to_forget(records: Sequence[tuple[str, int]], *, kept: int = JOBS_KEPT) -> list[str]:
    """Choose which of the stream's jobs to forget.

    Args:
        records: Each job's writer, and the version of its record: the larger, the later it committed.
    """
    jobs = sorted((version, writer) for writer, version in records)
    return [writer for _, writer in jobs[: max(0, len(jobs) - kept)]]
