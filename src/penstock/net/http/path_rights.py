"""Rights for requests that reach no call of the control plane: the pages of the process, and records of Pulsar's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.access.calls import on_stream
from penstock.core.access.resources import STORE, of_scope
from penstock.core.access.rights import ANY, SCRAPE, Need, missing
from penstock.model.callers import Caller
from penstock.model.errors import PenstockError, PermissionDeniedError, UnauthenticatedError
from penstock.model.identity import Action
from penstock.net.http.pulsar.names import NamespaceName, TopicName, split_partition

PUBLIC_PATHS = frozenset(
    {"/ping", "/v1/health/status", "/v1/health/liveness", "/v1/health/readiness", "/docs", "/openapi.json"}
)
"""What needs no credentials: probes of a supervisor have none, and the description is the same for all servers."""

_PAGES: Mapping[str, Need] = {"/metrics": Need.of(SCRAPE, STORE)}
"""The details of ``/v1/health`` name places of this machine, so any identity may see them, but nobody without one."""
_CHANGE = frozenset({Action.ADMIN, Action.RETAIN})


def check_path(path: str, caller: Caller) -> None:
    """Raises UnauthenticatedError, PermissionDeniedError: the caller has no right to this page of the process."""
    need = _PAGES.get(path)
    if need is not None:
        check_needs(caller, [need])


def check_needs(caller: Caller | None, needs: Sequence[Need]) -> None:
    """Raises UnauthenticatedError (the caller has no identity), PermissionDeniedError."""
    if caller is None or caller.identity is None:
        raise UnauthenticatedError("this request needs credentials")
    if missing(caller.identity, needs) is not None:
        raise PermissionDeniedError("the caller has no right to this", identity=caller.identity.name)


def pulsar_needs(method: str, params: Mapping[str, str]) -> Sequence[Need]:
    """What a request of Pulsar's API needs before its handler runs, by the names in its path.

    The handler's calls of the control plane are checked besides. This check is for what the API records itself, and
    keeps an answer from depending on whether a topic exists.
    """
    reads = method == "GET"
    if "namespace" not in params:
        return () if reads else (Need.of({Action.ADMIN}, STORE),)
    namespace = NamespaceName(params["tenant"], params["namespace"])
    if "topic" not in params:
        scope = _scope_of(namespace)
        if "subscription" in params:
            return (Need.of(ANY, scope),)
        return (Need.of(ANY, scope, below=True) if reads else Need.of(_CHANGE, scope),)
    local = params["topic"]
    split = split_partition(local)
    # A subscriber needs the right to read alone; the control plane checks more.
    wanted = ANY if reads or "subscription" in params else _CHANGE
    names = [local] if split is None else [local, split[0]]
    options = tuple(option for name in names for option in _topic_options(namespace, name, wanted))
    return (Need(options),)


def _scope_of(namespace: NamespaceName) -> str:
    try:
        return of_scope(namespace.scope)
    except PenstockError:
        return STORE  # no legal name: only a right on the store passes, and the handler refuses it


def _topic_options(
    namespace: NamespaceName, local: str, wanted: frozenset[Action]
) -> tuple[tuple[frozenset[Action], str], ...]:
    try:
        return on_stream(wanted, TopicName(namespace, local).stream).options
    except PenstockError:
        return ((wanted, STORE),)
