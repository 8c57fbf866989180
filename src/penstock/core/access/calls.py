"""The table of all calls, with the rights that each needs. A call that is not in the table is refused.

Keys are the names of the native interface: ``subject.call``, and ``segments.call``. An entry computes needs from the
arguments of the call, by name. Source: docs/design/0051-identity.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from penstock.core.access import resources as names
from penstock.core.access.rights import ANY, LOOK, Need, missing
from penstock.core.cases.case import EVERYTHING
from penstock.model.identity import Action, Identity
from penstock.model.names import RECORD_STREAMS, SYSTEM_SCOPE, StreamName
from penstock.model.values.dataclass import dataclass

Arguments: TypeAlias = Mapping[str, Any]
Needs: TypeAlias = Callable[[Arguments], Sequence[Need]]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a call needs.

    ``needs``: from its arguments. ``found_by``: the call names a hold, an erasure, a case or a request for approval by
    id (``hold``, ``erasure``, ``case``, ``approval``); the ``actions`` are needed on what it covers. ``shows``: a
    listing, of which the caller gets the names that it may see.
    """

    needs: Needs
    found_by: str = ""
    actions: frozenset[Action] = frozenset()
    shows: str = ""


def on_stream(actions: Iterable[Action], stream: StreamName) -> Need:
    """A need for one of the actions on a stream, or on the segments under its name.

    The store's records of its decisions need the right to audit. All else in the store's own scope needs a right on
    the store to change it.
    """
    wanted = frozenset(actions)
    if stream in RECORD_STREAMS and (wanted & {Action.READ} or wanted >= LOOK):
        wanted = frozenset({Action.AUDIT})
    elif stream.scope == SYSTEM_SCOPE:
        wanted = frozenset({Action.ADMIN})
    # Readers of a group also write its state, so for a group both are one right.
    of_group = wanted | {Action.READ} if Action.WRITE in wanted else wanted
    found = names.of_stream(stream)
    return Need(tuple((of_group if names.is_group(one) else wanted, one) for one in found))


def _streams(*actions: Action, of: str = "stream") -> Rule:
    """On the stream that the argument names, or (a cut) that it belongs to."""
    wanted = frozenset(actions)

    def needs(given: Arguments) -> Sequence[Need]:
        found = given[of]
        return (on_stream(wanted, found if isinstance(found, StreamName) else found.stream),)

    return Rule(needs)


def _segments(*actions: Action, of: str = "name") -> Rule:
    """On the streams of the segments that the argument names."""
    wanted = frozenset(actions)

    def needs(given: Arguments) -> Sequence[Need]:
        found = (given[of],) if isinstance(given[of], str) else tuple(given[of])
        return tuple(on_stream(wanted, stream) for stream in dict.fromkeys(map(names.of_segment, found)))

    return Rule(needs)


def _scopes(*actions: Action, below: bool = False, shows: str = "") -> Rule:
    wanted = frozenset(actions)
    return Rule(lambda given: (Need.of(wanted, names.of_scope(given["scope"]), below=below),), shows=shows)


def _store(*actions: Action, below: bool = False, shows: str = "") -> Rule:
    wanted = frozenset(actions)
    return Rule(lambda _: (Need.of(wanted, names.STORE, below=below),), shows=shows)


def _targets(*actions: Action, below: bool = False, shows: str = "") -> Rule:
    """On a stream, a scope, or the store."""
    wanted = frozenset(actions)

    def needs(given: Arguments) -> Sequence[Need]:
        target = given["target"]
        if isinstance(target, StreamName):
            return (on_stream(wanted, target),)
        return (Need.of(wanted, names.STORE if target is None else names.of_scope(target), below=below),)

    return Rule(needs, shows=shows)


def _tables(*actions: Action) -> Rule:
    wanted = frozenset(actions)
    return Rule(lambda given: (Need.of(wanted, names.of_table(given["scope"], given["name"])),))


def _groups(*actions: Action) -> Rule:
    wanted = frozenset(actions)
    return Rule(lambda given: (Need.of(wanted, names.of_group(given["scope"], given["name"])),))


def _group_config(given: Arguments) -> Sequence[Need]:
    """The group itself, and every stream that it reads."""
    config = given["config"]
    group = Need.of({Action.READ}, names.of_group(config.scope, config.name))
    return (group, *(on_stream({Action.READ}, one) for one in dict.fromkeys([*config.start_cuts, *config.end_cuts])))


def _positions(given: Arguments) -> Sequence[Need]:
    """The streams of all transactions, and the group whose positions are committed with them."""
    found = given["positions"]
    group = Need.of({Action.READ}, names.of_group(found.scope, found.group))
    streams = dict.fromkeys(one.stream for one in given.get("transactions", ()))
    return (group, *(on_stream({Action.WRITE}, one) for one in streams))


def of_subscriber(subscriber: str, *actions: Action) -> Need:
    """A need on the reader group of a subscriber, ``scope/group``."""
    scope, _, group = subscriber.partition("/")
    return Need.of(actions, names.of_group(scope, group))


def _publish(given: Arguments) -> Sequence[Need]:
    return on_stream({Action.READ}, given["cut"].stream), of_subscriber(given["subscriber"], Action.READ)


def _deleted(given: Arguments) -> Sequence[Need]:
    scope = given["scope"]
    return (Need.of(ANY, names.STORE if scope is None else names.of_scope(scope), below=True),)


def _erasures_of(given: Arguments) -> Sequence[Need]:
    stream = given["stream"]
    if stream is None:
        return (Need.of({Action.ERASE, Action.AUDIT}, names.STORE, below=True),)
    return (on_stream({Action.ERASE, Action.AUDIT}, stream),)


def _of_erasure(item: Any) -> Need:
    return on_stream({Action.ERASE, Action.AUDIT}, StreamName.parse(item.stream))


def on_targets(actions: Iterable[Action], targets: Sequence[str]) -> tuple[Need, ...]:
    """Needs for all targets of a case: streams as ``scope/stream``, scopes, and ``*`` for the store."""
    wanted = frozenset(actions)

    def need(target: str) -> Need:
        scope, slash, stream = target.partition("/")
        if slash:
            return on_stream(wanted, StreamName(scope, stream))
        return Need.of(wanted, names.STORE if target == EVERYTHING else names.of_scope(scope))

    return tuple(map(need, targets))


def _of_hold(item: Any) -> Need:
    # A hold on a scope also holds the streams that the caller may see.
    return on_stream(LOOK, item.stream) if item.stream else Need.of(LOOK, names.of_scope(item.scope), below=True)


def _of_target(text: str, actions: Iterable[Action]) -> Need:
    """A need on the target of a request for approval: a stream, a scope, or (empty) the server."""
    if "/" in text:
        return on_stream(actions, StreamName.parse(text))
    return Need.of(actions, names.of_scope(text) if text else names.STORE)


def _of_scope(name: str) -> Need:
    return Need.of(ANY, names.of_scope(name), below=name != SYSTEM_SCOPE)


_SHOWN: Mapping[str, Callable[[Any, Arguments], Need | tuple[Need, ...]]] = {
    "scope": lambda item, _: _of_scope(item),
    "stream": lambda item, given: on_stream(ANY, StreamName(given["scope"], item)),
    "reader-group": lambda item, given: Need.of(LOOK, names.of_group(given["scope"], item)),
    "key-value-table": lambda item, given: Need.of(ANY, names.of_table(given["scope"], item)),
    "deleted": lambda item, _: on_stream(ANY, item.stream),
    "hold": lambda item, _: _of_hold(item),
    "erasure": lambda item, _: _of_erasure(item),
    "case": lambda item, _: on_targets({Action.ERASE, Action.AUDIT}, item.targets),
    "approval": lambda item, _: _of_target(item.target, LOOK),
}


def seen(identity: Identity, rule: Rule, given: Arguments, items: Iterable[Any]) -> list[Any]:
    """The items of a listing that the identity may see."""
    need_of = _SHOWN[rule.shows]

    def may(item: Any) -> bool:
        needs = need_of(item, given)
        return missing(identity, needs if isinstance(needs, tuple) else (needs,)) is None

    return [item for item in items if may(item)]


def of_found(rule: Rule, item: Any) -> tuple[Need, ...]:
    """What a call needs that names a hold, an erasure, a case or a request for approval, once that was looked up."""
    if rule.found_by == "case":
        return on_targets(rule.actions, item.targets)
    if rule.found_by == "approval":
        return (_of_target(item.target, rule.actions),)
    if rule.found_by == "erasure":
        return (on_stream(rule.actions, StreamName.parse(item.stream)),)
    if item.stream:
        return (on_stream(rule.actions, item.stream),)
    return (Need.of(rule.actions, names.of_scope(item.scope)),)


def _by(kind: str, *actions: Action) -> Rule:
    return Rule(lambda _: (), found_by=kind, actions=frozenset(actions))


_R, _W, _A = Action.READ, Action.WRITE, Action.ADMIN
_CONTROL: Mapping[str, Mapping[str, Rule]] = {
    "scopes": {
        "create": _scopes(_A),
        "delete": _scopes(_A),
        "describe": _scopes(*LOOK),
        "exists": _scopes(*ANY, below=True),
        "list": _store(*ANY, below=True, shows="scope"),
    },
    "streams": {
        "create": _streams(_A),
        "update": _streams(_A),
        "seal": _streams(_A),
        "delete": _streams(_A),
        "truncate": _streams(_A),
        "restore": _streams(_A),
        "exists": _streams(*ANY),
        "config": _streams(*ANY),
        "describe": _streams(*LOOK),
        "list": _scopes(*ANY, below=True, shows="stream"),
        "list_deleted": Rule(_deleted, shows="deleted"),
    },
    "layout": {
        **{name: _streams(*ANY) for name in ("current", "of_epoch", "epochs", "successors", "ranges", "is_active")},
        "scale": _streams(_A),
        "scale_status": _streams(*ANY),
        "scaling": _streams(*LOOK),
        "endpoint": _segments(*ANY, of="segment"),
    },
    "cuts": {
        **{name: _streams(*ANY) for name in ("head", "tail", "is_valid")},
        **{name: _streams(*LOOK) for name in ("segments_between", "measure", "before")},
        "note_time": _streams(_W),
        "remove_writer": _streams(_W),
        "time_window": _streams(_R, of="position"),
    },
    "transactions": {
        **{name: _streams(_W) for name in ("create", "join", "ping", "commit", "abort", "status")},
        **{name: Rule(_positions) for name in ("commit_with_positions", "settle_positions", "release_positions")},
        "list_open": _streams(_W, _A, Action.RETAIN),
        "list_completed": _streams(_W, _A, Action.RETAIN),
    },
    "batches": {"commit": _streams(_W), "last": _streams(_W)},
    "groups": {
        "create": Rule(_group_config),
        "update": Rule(_group_config),
        "get": _groups(*LOOK),
        "delete": _groups(_A),
        "list": _scopes(*ANY, below=True, shows="reader-group"),
    },
    "subscribers": {
        "list": _streams(*LOOK),
        "describe": _streams(*LOOK),
        "publish": Rule(_publish),
        "move": _streams(Action.RETAIN),
        "remove": _streams(Action.RETAIN),
    },
    "policies": {"get": _targets(*LOOK), "set": _targets(Action.RETAIN), "effective": _streams(*LOOK)},
    "retention": {
        **{name: _streams(Action.RETAIN) for name in ("run", "undo", "undo_last")},
        **{name: _streams(*LOOK) for name in ("plan", "explain", "facts", "reclaim", "forecast", "list_evictions")},
    },
    "holds": {
        "add": _targets(Action.HOLD),
        "list": _targets(*LOOK, below=True, shows="hold"),
        "release": _by("hold", Action.HOLD),
        "extend": _by("hold", Action.HOLD),
    },
    "erasures": {
        "erase": _streams(Action.ERASE),
        "preview": _streams(Action.ERASE),
        "get": _by("erasure", Action.ERASE, Action.AUDIT),
        "part": _by("erasure", Action.ERASE, Action.AUDIT),
        "withdraw": _by("erasure", Action.ERASE),
        "note_table": _by("erasure", Action.ERASE),
        "confirm_table": _by("erasure", Action.ERASE),
        "list": Rule(_erasures_of, shows="erasure"),
    },
    "cases": {
        "open": Rule(lambda given: on_targets({Action.ERASE}, given["targets"])),
        "get": _by("case", Action.ERASE, Action.AUDIT),
        **{name: _by("case", Action.ERASE) for name in ("look", "confirm_table", "close", "withdraw", "subject")},
        "list": _store(Action.ERASE, Action.AUDIT, below=True, shows="case"),
        "key": _store(Action.ERASE, Action.AUDIT),
    },
    "evidence": {
        **{name: _store(Action.AUDIT) for name in ("checkpoint", "checkpoints", "consistency", "export")},
        # Public keys. The export of a ledger needs them too.
        "log": _store(Action.AUDIT, Action.ERASE),
        "rotate_key": _store(_A),
        "erasure": _by("erasure", Action.ERASE, Action.AUDIT),
        "disposal": _targets(Action.AUDIT),
        "hold": _store(Action.AUDIT),
        # A ledger has the subjects of all cases, which need this right.
        "ledger": _store(Action.ERASE),
    },
    "approvals": {
        "require": _targets(Action.RETAIN),
        "required": _targets(*LOOK),
        "approve": _by("approval", Action.APPROVE),
        "refuse": _by("approval", Action.APPROVE),
        "withdraw": _by("approval", *ANY),
        "get": _by("approval", *LOOK),
        "list": _store(*LOOK, below=True, shows="approval"),
    },
    "tables": {
        "create": _tables(_A),
        "delete": _tables(_A),
        "get": _tables(*ANY),
        "list": _scopes(*ANY, below=True, shows="key-value-table"),
    },
}

_SEGMENTS: Mapping[str, Rule] = {
    "infos": _segments(*ANY, of="names"),
    "count_events": _segments(*LOOK),
    "chunk_ranges": _segments(_R),
    "lease_chunks": _segments(_R, of="names"),
    "erased_ranges": _segments(_R, Action.ERASE),
    "spaces": _segments(*LOOK, of="names"),
    "grant_import": _segments(_W),
    "adopt_chunks": _segments(_W),
    # A lease has a random id, which only its holder and readers of the same stream know.
    "release_lease": _store(_R, below=True),
    "finish_lease_part": _store(_R, below=True),
    "disk": _store(*LOOK),
    "scrub": _store(_A),
}

CALLS: Mapping[str, Rule] = {
    **{f"{subject}.{name}": rule for subject, rules in _CONTROL.items() for name, rule in rules.items()},
    **{f"segments.{name}": rule for name, rule in _SEGMENTS.items()},
}
"""Every call of the control plane and of the segment store, by its name in the native interface."""
