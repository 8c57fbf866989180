"""Typed errors over HTTP: a status for every client, and the error itself, as JSON, for people and programs.

The body of every refused request is the document that gRPC carries too: ``{"class", "message", "fields"}``.
Source: docs/reference/rest.md, "Errors".
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.model.errors import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    DeadlineExceededError,
    FencedError,
    InvalidArgumentError,
    NotEmptyError,
    NotFoundError,
    PenstockError,
    StorageFullError,
    StreamNotSealedError,
    ThrottledError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)
from penstock.net.grpc.grpc_errors import encode_error

JSON = "application/json"

_HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"www-authenticate": 'Basic realm="penstock", charset="UTF-8", Bearer realm="penstock"'},
    429: {"retry-after": "1"},
    503: {"retry-after": "1"},
}

_STATUSES: Mapping[type[PenstockError], int] = {
    InvalidArgumentError: 400,
    UnauthenticatedError: 401,
    AccessError: 403,
    NotFoundError: 404,
    # Pravega's two errors for deleting something that is still in use.
    NotEmptyError: 412,
    StreamNotSealedError: 412,
    AlreadyExistsError: 409,
    ConflictError: 409,
    ThrottledError: 429,
    StorageFullError: 507,
    DeadlineExceededError: 504,
    UnavailableError: 503,
    FencedError: 503,
    UnsupportedError: 501,
    PenstockError: 500,
}


class Refusal(Exception):
    """A request refused at the HTTP level: the status, and the error that says why."""

    def __init__(self, status: int, error: PenstockError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, error)
        self.status = status
        self.error = error
        self.headers: Mapping[str, str] = headers or {}


def refused(status: int, message: str, **fields: object) -> Refusal:
    """A refusal of the request as such, with constant text and named fields."""
    return Refusal(status, InvalidArgumentError(message, **fields))


def status_of(error: PenstockError) -> int:
    """The HTTP status of an error; a class stands for its subclasses."""
    return next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)


def refusal_of(error: Exception) -> Refusal | None:
    """The refusal for an error, or None for an unexpected error."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, PenstockError):
        status = status_of(error)
        return Refusal(status, error, _HEADERS.get(status))
    if isinstance(error, HTTPException):
        return Refusal(error.status_code, InvalidArgumentError(str(error.detail).lower()), error.headers)
    return None


def refusal_response(refusal: Refusal) -> Response:
    """The answer to a refused request."""
    return Response(
        encode_error(refusal.error), status_code=refusal.status, media_type=JSON, headers=dict(refusal.headers)
    )
