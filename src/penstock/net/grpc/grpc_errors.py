"""Typed errors over gRPC: codes for every client, and the error itself for our own.

Each refused call carries a gRPC code or one of Pravega's statuses, which every client understands. It also carries the
error as trailing metadata ``penstock-error-bin``, from which our own client raises the same class with the same fields.
Source: docs/formats/native-api.md, "Errors".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import grpc

from penstock.model import errors
from penstock.model.errors import (
    AccessError,
    AlreadyExistsError,
    ApprovalRequiredError,
    ConflictError,
    CorruptDataError,
    DeadlineExceededError,
    FencedError,
    GenerationMismatchError,
    InternalError,
    InvalidArgumentError,
    InvalidCutError,
    InvalidNameError,
    NotEmptyError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    QuotaHeldError,
    ReaderGroupNotFoundError,
    RetentionHoldError,
    ScaleConflictError,
    ScopeNotFoundError,
    StorageFullError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    SubscriberNotFoundError,
    ThrottledError,
    TimeGoesBackError,
    TransactionNotFoundError,
    TransactionStateError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)

ERROR_KEY = "penstock-error-bin"

# Peers refuse more than 8 KiB of metadata in total; base64 adds a third.
_ERROR_BYTES_MAX = 3072
_TEXT_MAX = 512  # characters of a text in an error: it is sent in trailing metadata, which is limited
_DETAILS_MAX = 1024  # characters; the details go into a header of HTTP/2
_FIELDS_MAX = 16  # fields of an error; none of ours has more

# The only classes that bytes from a peer may name.
_CLASSES: Mapping[str, type[PenstockError]] = {
    name: item for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, PenstockError)
}

_CODES: Mapping[type[PenstockError], grpc.StatusCode] = {
    InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    AccessError: grpc.StatusCode.PERMISSION_DENIED,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    # Pravega's clients repeat a FAILED_PRECONDITION for minutes, and a sealed stream is never unsealed.
    StreamSealedError: grpc.StatusCode.INVALID_ARGUMENT,
    ConflictError: grpc.StatusCode.FAILED_PRECONDITION,
    ThrottledError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StorageFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    QuotaHeldError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineExceededError: grpc.StatusCode.DEADLINE_EXCEEDED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    # The owner re-opens, or another takes over: the client should retry.
    FencedError: grpc.StatusCode.UNAVAILABLE,
    CorruptDataError: grpc.StatusCode.DATA_LOSS,
    UnsupportedError: grpc.StatusCode.UNIMPLEMENTED,
    InternalError: grpc.StatusCode.INTERNAL,
    PenstockError: grpc.StatusCode.FAILED_PRECONDITION,
}

# What to raise for a bare code, from a server that is not ours.
_BASES: Mapping[grpc.StatusCode, type[PenstockError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.FAILED_PRECONDITION: ConflictError,
    grpc.StatusCode.ABORTED: ConflictError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ThrottledError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.DATA_LOSS: CorruptDataError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
}

_UPDATE_STREAM = {StreamNotFoundError: 2, ScopeNotFoundError: 3, StreamSealedError: 4}
# Both of Pravega's clients repeat FAILURE for a minute, and read TRANSACTION_NOT_FOUND as "already committed or
# aborted".
_FINISH_TRANSACTION = {
    StreamNotFoundError: 2,
    ScopeNotFoundError: 2,
    TransactionNotFoundError: 3,
    TransactionStateError: 3,
}

STATUSES: Mapping[str, Mapping[type[PenstockError], int]] = {
    "createScope": {AlreadyExistsError: 2, InvalidNameError: 3},
    "deleteScope": {ScopeNotFoundError: 2, NotEmptyError: 3, RetentionHoldError: 1, ApprovalRequiredError: 1},
    "deleteScopeRecursive": {ScopeNotFoundError: 2, NotEmptyError: 3, RetentionHoldError: 1, ApprovalRequiredError: 1},
    "listStreamsInScope": {ScopeNotFoundError: 2},
    "listStreamsInScopeForTag": {ScopeNotFoundError: 2},
    "createStream": {AlreadyExistsError: 2, ScopeNotFoundError: 3, InvalidNameError: 4},
    "updateStream": _UPDATE_STREAM | {ScaleConflictError: 1, RetentionHoldError: 1, ApprovalRequiredError: 1},
    "truncateStream": _UPDATE_STREAM | {InvalidCutError: 1, RetentionHoldError: 1, ApprovalRequiredError: 1},
    "sealStream": _UPDATE_STREAM,
    "deleteStream": {
        StreamNotFoundError: 2,
        ScopeNotFoundError: 2,
        StreamNotSealedError: 3,
        RetentionHoldError: 1,
        ApprovalRequiredError: 1,
    },
    "scale": {ScaleConflictError: 2, InvalidArgumentError: 2, StreamSealedError: 2},
    "commitTransaction": _FINISH_TRANSACTION,
    "abortTransaction": _FINISH_TRANSACTION,
    "pingTransaction": {TransactionNotFoundError: 7},
    "checkTransactionState": {TransactionNotFoundError: 0},
    "noteTimestampFromWriter": {TimeGoesBackError: 1, InvalidCutError: 2},
    "removeWriter": {StreamNotFoundError: 2, ScopeNotFoundError: 2},
    "createKeyValueTable": {AlreadyExistsError: 2, ScopeNotFoundError: 3, InvalidNameError: 4},
    "getKeyValueTableConfiguration": {NotFoundError: 2},
    "deleteKeyValueTable": {NotFoundError: 2},
    "listKeyValueTablesInScope": {ScopeNotFoundError: 2},
    "createReaderGroup": {ScopeNotFoundError: 2, InvalidNameError: 3},
    "updateReaderGroup": {NotFoundError: 2, GenerationMismatchError: 3, InvalidArgumentError: 3},
    "getReaderGroupConfig": {NotFoundError: 2},
    "deleteReaderGroup": {NotFoundError: 2},
    "listSubscribers": {StreamNotFoundError: 2, ScopeNotFoundError: 2},
    "updateSubscriberStreamCut": {
        StreamNotFoundError: 2,
        ScopeNotFoundError: 2,
        SubscriberNotFoundError: 3,
        ReaderGroupNotFoundError: 3,
        InvalidCutError: 4,
        GenerationMismatchError: 5,
    },
}
"""For each call of Pravega's controller, the errors that it answers with a status in its reply, and that status. A
class includes its subclasses, unless they are listed themselves. Errors that are not listed become gRPC codes."""


def status_of(rpc: str, error: PenstockError) -> int | None:
    """The status with which ``rpc`` answers the error, or None if it must be a gRPC code."""
    statuses = STATUSES.get(rpc, {})
    return next((statuses[kind] for kind in type(error).__mro__ if kind in statuses), None)


def class_of_status(rpc: str, status: int) -> type[PenstockError]:
    """The error that a status other than success means: the first one of the table, or ``ConflictError``."""
    return next((kind for kind, value in STATUSES.get(rpc, {}).items() if value == status), ConflictError)


def code_of(error: PenstockError) -> grpc.StatusCode:
    """The gRPC code of an error. Never UNKNOWN, which Pravega's clients repeat for minutes."""
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)


def class_of_code(code: grpc.StatusCode) -> type[PenstockError]:
    """The nearest class for a bare code."""
    return _BASES.get(code, InternalError)


def details_of(error: PenstockError) -> str:
    """One line for people, short enough for a header."""
    return str(error)[:_DETAILS_MAX]


def encode_error(error: PenstockError) -> bytes:
    """The error as JSON of at most 3 KiB: class name, message, fields. Values that JSON lacks become text. If it is too
    long, it is cut, the last fields first."""
    fields = {name: _plain(value) for name, value in list(error.fields.items())[:_FIELDS_MAX]}
    while True:
        document = {"class": type(error).__name__, "message": error.message[:_TEXT_MAX], "fields": fields}
        data = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
        if len(data) <= _ERROR_BYTES_MAX or not fields:
            return data
        fields.popitem()


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:_TEXT_MAX]


def decode_error(data: bytes) -> PenstockError | None:
    """Rebuild the error; None if the bytes are not an error or name a class that this version does not know."""
    try:
        document = json.loads(data)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    kind = _CLASSES.get(str(document.get("class")))
    fields = document.get("fields")
    if kind is None or not isinstance(fields, dict):
        return None
    named: dict[str, Any] = {name: value for name, value in fields.items() if name not in ("self", "message")}
    return kind(str(document.get("message")), **named)
