"""``/v1/health`` and ``/ping``: whether this process is up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.model.errors import NotFoundError
from penstock.model.values.dataclass import dataclass
from penstock.net.http.reading_requests import json_response, nothing, path_route

Check = Callable[[], str | None]
"""Why something does not work now, or None."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Parts of the process by name. While a ``vital`` part does not work, the process is not live: a restart may help.
    While one of the ``functions`` does not work (for example, tier 2 is full), the process is not ready for it, and a
    restart does not help. ``warnings`` are shown in the details of the server and change nothing else."""

    vital: Mapping[str, Check] = field(default_factory=dict)
    functions: Mapping[str, Check] = field(default_factory=dict)
    warnings: Mapping[str, Check] = field(default_factory=dict)


_ROOT = "controller"
_UP, _DOWN = "UP", "DOWN"


class Health:
    """Pravega's health calls. They answer 200 even if a part is down; the body says which."""

    def __init__(self, checks: Checks) -> None:
        self._checks = {**checks.vital, **checks.functions}
        self._vital = checks.vital
        self._warnings = checks.warnings

    def routes(self) -> Sequence[Route]:
        parts = {
            "": self._result,
            "/readiness": self._works,
            "/liveness": self._lives,
            "/details": self._details,
            "/status": self._status,
        }
        # The fixed names first: they are not names of parts.
        routes = [path_route("/ping", {"GET": ping})]
        routes.extend(_route(f"/v1/health{name}", answer) for name, answer in parts.items())
        routes.extend(_route(f"/v1/health{name}/{{id}}", answer) for name, answer in parts.items())
        return routes

    def _failures(self, part: str) -> Mapping[str, str]:
        """Why the part does not work, by part. Raises NotFoundError."""
        if part != _ROOT and part not in self._checks:
            raise NotFoundError("no such part of the server", id=part[:80])
        names = self._checks if part == _ROOT else [part]
        found = {name: self._checks[name]() for name in names}
        return {name: reason for name, reason in found.items() if reason is not None}

    def _works(self, part: str) -> bool:
        return not self._failures(part)

    def _lives(self, part: str) -> bool:
        return not any(name in self._vital for name in self._failures(part))

    def _status(self, part: str) -> str:
        return _UP if self._works(part) else _DOWN

    def _details(self, part: str) -> Mapping[str, str]:
        found = dict(self._failures(part))
        if part == _ROOT:
            warnings = {name: check() for name, check in self._warnings.items()}
            found = {**{name: text for name, text in warnings.items() if text is not None}, **found}
        return found

    def _result(self, part: str) -> Mapping[str, object]:
        children = {name: self._result(name) for name in self._checks} if part == _ROOT else {}
        works = self._works(part)
        return {
            "name": part,
            "status": self._status(part),
            "readiness": works,
            "liveness": self._lives(part),
            "details": self._details(part),
            "children": children,
        }


def _route(path: str, answer: Callable[[str], object]) -> Route:
    async def handle(request: Request) -> Response:
        return json_response(answer(request.path_params.get("id", _ROOT)))

    return path_route(path, {"GET": handle})


async def ping(_request: Request) -> Response:
    """200 and nothing else, without calling any other part."""
    return nothing(200)
