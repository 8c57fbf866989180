"""What the nodes of a cluster hold. Source: docs/design/0065-cluster.md, "Nodes"."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, field, fields
from typing import Any, ClassVar, Final, Protocol, TypeVar

from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

FORMAT: Final = 1  # version of the JSON of all these nodes

CONFIG: Final = "config"
FEATURES: Final = "features"
ACCESS: Final = "access"
SECRET: Final = "secret"
REQUESTS: Final = "requests"
ASSIGNMENT: Final = "assignment"
STORES: Final = "stores"
CONTROLLERS: Final = "controllers"
CONTAINERS: Final = "containers"
HOLDERS: Final = "holders"
FAILED: Final = "failed"
LEADER: Final = "leader"
TERM: Final = "term"
RESTORED: Final = "restored"
INCARNATIONS: Final = "incarnations"
"""Above one node, named by ``ClusterConfig.incarnation``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """``cluster``: id of the cluster. ``containers``: their fixed number. ``ledgers``: BookKeeper's root in ZooKeeper.
    ``tier2``: URL or path of tier 2, which all stores reach; ``endpoint``: of a bucket, if it is not the default.
    ``bookkeeper``: the INSTANCEID of BookKeeper. ``incarnation``: drawn when these nodes were created, so that a process
    that knew earlier ones changes nothing. Both are None in clusters of the first version."""

    cluster: str
    containers: int
    ledgers: str
    tier2: str
    endpoint: str | None = None
    bookkeeper: str | None = None
    incarnation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """``level``: the highest level of formats that any process of the cluster may write; see ``core.cluster.levels``."""

    level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAccess:
    """``object``: of tier 2, with the users and the list of tokens, encrypted. ``files``: names of these files, and the
    SHA-256 of what each one contains. ``number``: grows with each change; 0: an earlier version has written it."""

    object: str
    files: Mapping[str, str]
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretDigests:
    """``digests``: of the secrets that processes may use, each salted and slow to compute; see ``app.cluster.access.secret``.
    The last one is the newest. There are two while the secret is changed."""

    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """``drained``: names of stores that the operator wants to be empty, sorted. ``pinned``: containers that the operator
    wants in a certain store. ``disabled``: containers that no store may open, each with the reason."""

    drained: tuple[str, ...] = ()
    pinned: Mapping[int, str] = field(default_factory=dict)
    disabled: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOpening:
    """A store could not open a container, and leaves it to others. ``reason``: of the last attempt."""

    store: str
    container: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """``owners``: the store of each container that has one. ``moved_at_ms``: when a container of a live store was last
    moved. ``losses_ms``: for each store when its registration was lost, oldest first. ``known``: the stores that were
    registered, sorted. Times in milliseconds since the Unix epoch."""

    owners: Mapping[int, str] = field(default_factory=dict)
    moved_at_ms: int = 0
    losses_ms: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    known: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEntry:
    """A store that lives. ``clients`` and ``links``: ``HOST:PORT`` for clients and for controllers. ``pid``: for
    operators. ``session``: id of the session that registered it. ``level``: of its version; entries of the first version
    lack it. ``at_ms``: its wall clock when it registered, in milliseconds since the Unix epoch; 0: unknown. ``secret``:
    digest of the secret that it uses; empty: unknown."""

    store: str
    clients: str
    links: str
    pid: int
    session: str = ""
    level: int = 1
    at_ms: int = 0
    secret: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerEntry:
    """A controller that lives. ``grpc`` and ``http``: ``HOST:PORT``; a standby listens there only when it is active.
    ``level``, ``at_ms`` and ``secret``: as in ``StoreEntry``. ``outdated``: why it accepts no users and tokens now; empty: it
    does."""

    controller: str
    grpc: str
    http: str
    active: bool
    pid: int
    level: int = 1
    at_ms: int = 0
    secret: str = ""
    outdated: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldContainer:
    """Who holds a container. ``serving``: it is open; before, it is being taken over. ``clients``, ``links`` and
    ``session``: as in ``StoreEntry``."""

    store: str
    clients: str
    links: str
    serving: bool
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """``term``: number of the last election, from 1 on; 0: there was none. ``controller``: who was elected."""

    term: int
    controller: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A rebuild has lost the end of a log, so positions that clients know may mean other events. The next active controller
    moves all streams to new segments, whose numbers are ``jump`` higher, and deletes the node. ``reason``: of the
    operator."""

    jump: int
    reason: str = ""


class _Fields(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


_N = TypeVar("_N", bound=_Fields)


def encode_node(node: _Fields) -> bytes:
    """JSON, with sorted keys."""
    return json.dumps({"format": FORMAT, **asdict(node)}, sort_keys=True).encode()


def decode_node(kind: type[_N], data: bytes) -> _N:
    """The node of this kind, with values of its types. Raises CorruptDataError, VersionTooNewError."""
    try:
        parts = json.loads(data)
        version = parts["format"]
        if not isinstance(version, int) or version > FORMAT:
            raise VersionTooNewError("node of the cluster has a newer format", found=version, supported=FORMAT)
        known = {one.name: str(one.type) for one in fields(kind)}
        return kind(**{name: _value(known[name], value) for name, value in parts.items() if name in known})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptDataError(
            "node of the cluster cannot be read; `penstock cluster doctor` reports what to do",
            kind=kind.__name__,
            reason=str(error),
        ) from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not a text: {type(value).__name__}")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"not a whole number: {type(value).__name__}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"not true or false: {type(value).__name__}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"not a list: {type(value).__name__}")
    return value


_VALUES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "str": _text,
    "str | None": lambda value: None if value is None else _text(value),
    "int": _number,
    "bool": _flag,
    "tuple[str, ...]": lambda value: tuple(map(_text, _list(value))),
    "Mapping[str, str]": lambda value: {name: _text(text) for name, text in value.items()},
    "Mapping[int, str]": lambda value: {int(number): _text(store) for number, store in value.items()},
    "Mapping[str, tuple[int, ...]]": lambda value: {
        store: tuple(map(_number, _list(times))) for store, times in value.items()
    },
}
"""How JSON becomes a value of each type of a field. Raises TypeError, ValueError, AttributeError."""


def _value(kind: str, value: Any) -> Any:
    return _VALUES[kind](value)


def failed_path(container: int, store: str) -> str:
    """The registration that says that the store could not open the container."""
    return f"{FAILED}/{container}-{store}"


def failed_pairs(members: Iterable[str]) -> frozenset[tuple[int, str]]:
    """Containers and stores, from the names below ``failed``. Names of another form are ignored."""
    found = set()
    for member in members:
        number, _, store = member.partition("-")
        if number.isascii() and number.isdigit() and store:
            found.add((int(number), store))
    return frozenset(found)
