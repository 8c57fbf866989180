"""Decide how long the last batch of a writer is remembered, so that a repeated commit changes nothing.

A name that belongs to a checkpoint, an application or a person may come back at any time. Its record stays as long as the
stream. A plain job generates a name for its one batch, and nobody can use that name again once the job has ended. So only
the latest job records are kept. Source: docs/design/0006-controller.md, "What grows".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

JOBS_KEPT = 1000
"""Number of jobs of one stream that are remembered after their commit. A job repeats its commit for minutes at most."""

_ONE_JOB = re.compile(r".*-job-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/[^/]+/[^/]+")


def is_one_job(writer: str) -> bool:
    """Whether the name was generated for a single job."""
    return _ONE_JOB.fullmatch(writer) is not None


def jobs_to_forget(records: Sequence[tuple[str, int]], *, kept: int = JOBS_KEPT) -> list[str]:
    """Choose which of the stream's writers to forget.

    Args:
        records: Writer, and the version of its record: the larger, the later it committed.
    """
    jobs = sorted((version, writer) for writer, version in records if is_one_job(writer))
    return [writer for _, writer in jobs[: max(0, len(jobs) - kept)]]
