"""Log operations that are not in the rows of the catalogue. A start applies them; a rebuild does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.app.integrity.source import Source
from penstock.codec.store.operation_frames import decode_frame_header
from penstock.model.damage import Damage
from penstock.storage.log.check import look_at_log
from penstock.storage.log.scan import frames_of


async def look_behind(source: Source, known: Mapping[int, int]) -> tuple[list[dict[str, Any]], list[Damage]]:
    """Count the frames and operations of the log beyond ``known``, for each container that has any.

    ``known``: for each container the log address up to which the catalogue's rows hold all operations; -1 or absent: not
    known, and the whole log counts. Without a data directory, or without a log in it, nothing is found.
    Returns the counts, in order of containers, and the damage because of which the log cannot be read to its end.
    Raises: VersionTooNewError, OSError.
    """
    if source.files is None:
        return [], []
    report = await look_at_log(source.files, "wal")
    if report.image is None or report.epoch is None:
        return [], list(report.damage)
    found: dict[int, dict[str, Any]] = {}
    for index, accepted in enumerate(report.image.chain):
        upto = report.image.last_of(index)
        async for address, payload in frames_of(source.files, accepted, seed=report.epoch.seed, upto=upto):
            header = decode_frame_header(payload)
            if address > known.get(header.container, -1):
                empty = {"container": header.container, "frames": 0, "operations": 0}
                item = found.setdefault(header.container, empty)
                item["frames"] += 1
                item["operations"] += header.count
    return [found[container] for container in sorted(found)], list(report.damage)
