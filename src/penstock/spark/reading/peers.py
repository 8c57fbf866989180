"""How the sources of one streaming query share a wait.

Spark asks the sources of a query one after another, each in a process of its own. A source that waits for events of its own
stream keeps the events of all others waiting. So the sources of a driver report to each other, in small files: the one that
waits looks at the streams of all, and the others answer at once. Reasons: docs/design/0009-spark.md, Waiting.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

from penstock.ports.segment_service import SegmentInfo
from penstock.spark.worker.lifetime import is_source_runner

log = logging.getLogger("penstock.spark")

Seen: TypeAlias = tuple[int, int, bool]
"""Start, length and seal of a segment. A source that found nothing finds nothing until one of them changes."""

_PREFIX = "penstock-sources"
_PID_DIGITS = 10
"""Anyone may make names in a directory for temporary files, with more digits than a process id or an integer has."""
_ALONE = "sources of a query cannot report to each other, so an idle one may delay the others by a second. error=%s"


class State(StrEnum):
    """What a source is doing. ``ASKED``: it looks for events. Then it answered Spark that it has ``NEWS``, or ``NOTHING``;
    ``WOKEN``: nothing, but it saw that another source has events."""

    ASKED = "asked"
    NEWS = "news"
    WOKEN = "woken"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one source last did. ``turn`` counts its reports. ``seen``: by segment name, what it knew when it found nothing.
    ``woken_by``: the sources that it saw events of."""

    source: str
    pid: int
    turn: int
    state: State
    address: str
    seen: Mapping[str, Seen]
    woken_by: tuple[str, ...] = ()


def seen_of(info: SegmentInfo | None) -> Seen:
    """What decides whether a segment may have events. A deleted segment compares unlike any other."""
    return (-1, -1, True) if info is None else (info.start_offset, info.length, info.sealed)


def has_changed(seen: Mapping[str, Seen], found: Mapping[str, SegmentInfo]) -> bool:
    """Whether any of the segments is not as it was seen."""
    return any(seen_of(found.get(name)) != before for name, before in seen.items())


def with_news(reports: Iterable[Report]) -> Sequence[Report]:
    """Those whose sources had events, or saw that another source had."""
    return [item for item in reports if item.state in (State.NEWS, State.WOKEN)]


class Watch:
    """Which reports of other sources call for an answer. Decisions only; used while this source is asked.

    A query asks one source at a time. So a source that is asked while this one is belongs to another query, for good.
    """

    def __init__(self) -> None:
        self._strangers: set[str] = set()
        self._answered: dict[str, int] = {}

    def pending(self, reports: Iterable[Report]) -> Sequence[Report]:
        """Reports of sources that may be of this query, and that no answer was given to."""
        reports = list(reports)
        self._strangers |= {item.source for item in reports if item.state is State.ASKED}
        return [
            item
            for item in reports
            if item.source not in self._strangers and self._answered.get(item.source) != item.turn
        ]

    def answer(self, reports: Iterable[Report]) -> None:
        """Spark is about to be answered because of these reports. Each counts once: a stranger's may repeat forever."""
        self._answered.update((item.source, item.turn) for item in reports)


class Peers:
    """Reports of the sources of one driver: a file each, in a directory of this user's and this driver's.

    Where the directory cannot be used any more, that is logged once, and there are no other sources from then on.
    """

    def __init__(self, directory: Path, address: str) -> None:
        self._directory: Path | None = directory
        self._address = address
        self._source = uuid4().hex
        self._turn = 0

    def clears(self, report: Report) -> bool:
        """Whether its source looked at all streams and found nothing new for this source."""
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
        """Reports of the other sources that are alive. Those of dead ones are deleted."""
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
    """The report in the file; None where its source is dead, or where it is none that this version knows."""
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
        # Of another version, or what a crash of the machine left under a process id that is in use again.
        log.debug("report of a source cannot be read. path=%s error=%s", path, error)
        return None


def peers_of_driver(address: str) -> Peers | None:
    """The sources beside this one, in the process in which Spark runs one; None elsewhere.

    Also None, with a warning, where the directory for temporary files cannot be used: then sources wait up to a second.
    """
    if not is_source_runner():
        return None
    try:
        return Peers(shared_directory(Path(tempfile.gettempdir()), os.getppid()), address)
    except OSError as error:
        log.warning(_ALONE, error)
        return None


def shared_directory(parent: Path, driver: int) -> Path:
    """Make the directory of the driver's sources, which only this user can use. Deletes those of drivers that ended.

    Raises: OSError, also where another user has taken the name.
    """
    prefix = f"{_PREFIX}-{os.getuid()}-"
    for old in parent.glob(f"{prefix}*"):
        number = old.name.removeprefix(prefix)
        if number.isdecimal() and not (len(number) <= _PID_DIGITS and _is_alive(int(number))):
            try:
                _delete(old)
            except OSError as error:
                # Another source deletes it too, or it is no directory. This source needs only its own.
                log.debug("directory of a driver that ended stays. path=%s error=%s", old, error)
    directory = parent / f"{prefix}{driver}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"directory is not this user's alone. path={directory}")
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
