"""How the sources of one streaming query wait together.

Spark asks the sources of a query one after another, each in its own process. While a source waits for events of its own
stream, the events of all others wait too. So the sources of a driver report to each other in small files: the one that
waits watches the streams of all, and the others answer at once. Reasons: docs/design/0009-spark.md, Waiting.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

from penstock.model.values.dataclass import dataclass
from penstock.ports.data.segments import SegmentInfo
from penstock.spark.worker.lifetime import is_source_runner

log = logging.getLogger("penstock.spark")

Seen: TypeAlias = tuple[int, int, bool]
"""Start, length and seal of a segment. A source that found nothing finds nothing until one of them changes."""

_PREFIX = "penstock-sources"
_PID_DIGITS = 10
"""Anyone can create names in a directory for temporary files, with more digits than a process id or an integer has."""
_ALONE = "sources cannot write files for each other, so an idle one may delay the others by a second. error=%s"


class State(StrEnum):
    """What a source is doing. ``ASKED``: Spark has asked it, and it looks for events. ``NEWS``: it answered that it has
    events. ``NOTHING``: it answered that it has none. ``WOKEN``: it has none, but saw that another source has
    events."""

    ASKED = "asked"
    NEWS = "news"
    WOKEN = "woken"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The last report of one source. ``turn`` counts its reports. ``seen``: by segment name, what it saw when it found
    nothing. ``woken_by``: the sources whose events it saw."""

    source: str
    pid: int
    turn: int
    state: State
    address: str
    seen: Mapping[str, Seen]
    woken_by: tuple[str, ...] = ()


def seen_of(info: SegmentInfo | None) -> Seen:
    """The values that change if a segment gets events. Those of a deleted segment differ from all others."""
    return (-1, -1, True) if info is None else (info.start_offset, info.length, info.sealed)


def has_changed(seen: Mapping[str, Seen], found: Mapping[str, SegmentInfo]) -> bool:
    """Whether any of the segments has changed since it was seen."""
    return any(seen_of(found.get(name)) != before for name, before in seen.items())


def with_news(reports: Iterable[Report]) -> Sequence[Report]:
    """The reports of sources that had events or saw events of another source."""
    return [item for item in reports if item.state in (State.NEWS, State.WOKEN)]


class Watch:
    """Decide which reports of other sources this source must react to. Used while Spark waits for this source.

    A query asks one source at a time. So a source that is asked at the same time as this one belongs to another query, and
    is ignored from then on.
    """

    def __init__(self) -> None:
        self._strangers: set[str] = set()
        self._answered: dict[str, int] = {}

    def pending(self, reports: Iterable[Report]) -> Sequence[Report]:
        """Reports that have had no reaction yet, of sources that may belong to this query."""
        reports = list(reports)
        self._strangers |= {item.source for item in reports if item.state is State.ASKED}
        return [
            item
            for item in reports
            if item.source not in self._strangers and self._answered.get(item.source) != item.turn
        ]

    def answer(self, reports: Iterable[Report]) -> None:
        """Record that Spark is answered because of these reports. Each counts once, because those of another query may
        continue forever."""
        self._answered.update((item.source, item.turn) for item in reports)


class Peers:
    """Reports of the sources of one driver: one file per source, in a directory of this user and driver.

    If the directory becomes unusable, this is logged once, and the source waits alone from then on.
    """

    def __init__(self, directory: Path, address: str) -> None:
        self._directory: Path | None = directory
        self._address = address
        self._source = uuid4().hex
        self._turn = 0

    def clears(self, report: Report) -> bool:
        """Whether the reporting source checked all streams and found nothing new for this source."""
        return report.state is State.WOKEN and self._source not in report.woken_by

    def report(self, state: State, seen: Mapping[str, Seen], woken_by: tuple[str, ...] = ()) -> None:
        """Replace this source's report."""
        self._turn += 1
        report = Report(
            source=self._source,
            pid=os.getpid(),
            turn=self._turn,
            state=state,
            address=self._address,
            seen=seen,
            woken_by=woken_by,
        )
        if self._directory is None:
            return
        part = self._directory / f".{self._source}"
        try:
            part.write_text(json.dumps(asdict(report)))
            part.replace(self._directory / self._source)
        except OSError as error:
            self._give_up(error)

    def others(self) -> Sequence[Report]:
        """Reports of the other live sources. Those of dead sources are deleted."""
        if self._directory is None:
            return ()
        try:
            names = sorted(path for path in self._directory.iterdir() if not path.name.startswith("."))
            found = [_read(path) for path in names if path.name != self._source]
        except OSError as error:
            self._give_up(error)
            return ()
        return [report for report in found if report is not None]

    def _give_up(self, error: OSError) -> None:
        self._directory = None
        log.warning(_ALONE, error)


def _read(path: Path) -> Report | None:
    """The report in the file; None if its source is dead, or if this version does not know the format."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None  # deleted by another source
    try:
        fields = json.loads(text)
        if not _is_alive(fields["pid"]):
            path.unlink(missing_ok=True)
            return None
        seen = {name: (start, length, sealed) for name, (start, length, sealed) in fields["seen"].items()}
        state, woken_by = State(fields["state"]), tuple(fields["woken_by"])
        return Report(**{**fields, "state": state, "seen": seen, "woken_by": woken_by})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # Another version wrote it, or a crash of the machine left it under a process id that is in use again.
        log.debug("report of a source cannot be read. path=%s error=%s", path, error)
        return None


def peers_of_driver(address: str) -> Peers | None:
    """The other sources of the driver, in a process that runs a streaming source; None in other processes.

    Also None, with a warning, if the directory for temporary files cannot be used: then each source waits up to a second.
    """
    if not is_source_runner():
        return None
    try:
        return Peers(shared_directory(Path(tempfile.gettempdir()), os.getppid()), address)
    except OSError as error:
        log.warning(_ALONE, error)
        return None


def shared_directory(parent: Path, driver: int) -> Path:
    """Create the directory of the driver's sources, which only this user can access. Deletes those of ended drivers.

    Raises: OSError, also if another user has taken the name.
    """
    prefix = f"{_PREFIX}-{os.getuid()}-"
    for old in parent.glob(f"{prefix}*"):
        number = old.name.removeprefix(prefix)
        if number.isdecimal() and not (len(number) <= _PID_DIGITS and _is_alive(int(number))):
            try:
                _delete(old)
            except OSError as error:
                # Another source is deleting it too, or it is not a directory. This source needs only its own.
                log.debug("directory of a driver that ended stays. path=%s error=%s", old, error)
    directory = parent / f"{prefix}{driver}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"other users can access the directory. path={directory}")
    return directory


def _delete(directory: Path) -> None:
    if directory.is_symlink() or directory.stat().st_uid != os.getuid():
        return
    for path in directory.iterdir():
        path.unlink(missing_ok=True)
    directory.rmdir()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
