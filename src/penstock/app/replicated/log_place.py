"""Where a store's log is: in its directory, on BookKeeper, or in its tier 2. A mark binds a store to its log."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from penstock.model.errors import CorruptDataError, InvalidArgumentError, UnsupportedError
from penstock.model.values.dataclass import dataclass
from penstock.storage.machine.calls import make_directories, replace_file

SCHEME = "bookkeeper"
TIER2_LOG = "tier2:"
"""The address of a log in the tier 2 of its store."""
TIER2_RECORD = "log/record"
MARK = "wal/BOOKKEEPER"
LEDGERS_ROOT = "/ledgers"
NO_ERASURE = (
    "erasure is not possible before the cluster is upgraded with `penstock cluster upgrade`: until then its logs are not"
    " encrypted, and bookies keep deleted bytes until they compact"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """``hosts``: ZooKeeper's addresses; ``path``: the node of the log's record; ``ledgers_root``: BookKeeper's node. Of a
    log in tier 2, ``path`` is the object, and the others are empty."""

    hosts: str
    path: str
    ledgers_root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMark:
    """``uid``: of the log that holds the store's frames; ``url``: where it was when this directory was first used.

    ``home``: of this directory; the log's record names the home whose metadata is valid. None: of an earlier version.
    ``loading``: the metadata is not complete yet, because the directory is taking over the store from another one.
    ``hold_s``: seconds for which the store must still serve before a chunk is freed, because a takeover lost the leases;
    None: there was no takeover, or it is that long ago.
    """

    uid: str
    url: str
    home: str | None = None
    loading: bool = False
    hold_s: float | None = None


def parse_log_place(url: str) -> LogPlace:
    """The parts of ``bookkeeper://HOST:PORT[,HOST:PORT]/PATH[?ledgers=/ROOT]``, or of ``TIER2_LOG``. Raises
    InvalidArgumentError."""
    if url == TIER2_LOG:
        return LogPlace(hosts="", path=TIER2_RECORD, ledgers_root="")
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    roots = query.pop("ledgers", [LEDGERS_ROOT])
    if parts.scheme != SCHEME or not parts.netloc or not parts.path.strip("/") or query or parts.fragment:
        raise InvalidArgumentError(
            "not the address of a log; write bookkeeper://ZOOKEEPER:PORT/PATH, such as"
            " bookkeeper://zk1:2181,zk2:2181/penstock/store1",
            given=url,
        )
    if "@" in parts.netloc:
        raise InvalidArgumentError("the address of a log takes no user and password", given=url)
    if not roots[0].startswith("/"):
        raise InvalidArgumentError("BookKeeper's root in ZooKeeper begins with /", given=url)
    return LogPlace(hosts=parts.netloc, path=f"/{parts.path.strip('/')}", ledgers_root=roots[0].rstrip("/"))


def read_mark(data: Path) -> LogMark | None:
    """The mark of a store whose log is on BookKeeper; None: its log is in its directory. Raises CorruptDataError."""
    try:
        fields = json.loads((data / MARK).read_bytes())
        return LogMark(
            uid=str(fields["uid"]),
            url=str(fields["url"]),
            home=fields.get("home"),
            loading=bool(fields.get("loading")),
            hold_s=fields.get("hold_s"),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("mark of the store's log cannot be read", file=MARK) from error


def write_mark(data: Path, mark: LogMark) -> None:
    """Replace the mark durably. Raises StorageFullError, OSError."""
    make_directories((data / MARK).parent)
    replace_file(data / MARK, json.dumps(asdict(mark), sort_keys=True).encode())


def check_log_choice(data: Path, log_url: str | None) -> None:
    """Raises InvalidArgumentError if the store has its log elsewhere than ``log_url`` (None: in its directory)."""
    mark = read_mark(data)
    if mark is None:
        if log_url is not None and (data / "wal" / "EPOCH").exists():
            option = "--ack" if log_url == TIER2_LOG else "--log"
            raise InvalidArgumentError(
                f"this store has its log in its directory, and a log cannot be moved: leave {option} out",
                data=str(data),
            )
        return
    if (mark.url == TIER2_LOG) == (log_url == TIER2_LOG) and log_url is not None:
        return
    if mark.url == TIER2_LOG:
        how = 'start it with `--ack tier2`, or open it with ack="tier2"'
    else:
        how = "serve it with `penstock standalone --log` and the log's address, and connect to that"
    raise InvalidArgumentError(
        f"the log of this store is {_where(mark)}: {how}",
        data=str(data),
        log=mark.url,
    )


def refuse_replicated(data: Path, *, what: str) -> None:
    """Raise UnsupportedError for work that needs the log in the store's directory."""
    mark = read_mark(data)
    if mark is not None:
        raise UnsupportedError(
            f"{what} is not supported for a store whose log is {_where(mark)}", data=str(data), log=mark.url
        )


def _where(mark: LogMark) -> str:
    return "in tier 2" if mark.url == TIER2_LOG else "on BookKeeper"
