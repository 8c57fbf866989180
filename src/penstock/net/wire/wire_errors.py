"""Errors as replies of the wire protocol, and back."""

from __future__ import annotations

import json
from typing import Any

from penstock.codec.wire import commands as c
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.frames import Command
from penstock.model.errors import (
    AccessError,
    AlreadyExistsError,
    BadKeyVersionError,
    ConditionFailedError,
    ContainerOfflineError,
    CorruptDataError,
    FencedError,
    InternalError,
    InvalidArgumentError,
    KeyNotFoundError,
    NotEmptyError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    QuotaExceededError,
    QuotaHeldError,
    RetentionHoldError,
    SegmentNotFoundError,
    SegmentSealedError,
    StorageFullError,
    ThrottledError,
    TruncatedError,
    UnauthenticatedError,
    UnsupportedError,
    WriterFencedError,
    WriterForgottenError,
)

ILLEGAL_ARGUMENT = 0  # number of Pravega's error code
TOKEN_INVALID, TOKEN_EXPIRED = 0, 1  # numbers of Pravega's codes of an AuthTokenCheckFailed
DAMAGED = 64
"""Our own code of an ErrorMessage. Pravega's clients take a code that they do not know for "unspecified"."""
STORAGE_FULL = 65
"""Likewise, and only for ``OWN_TOKEN``: Pravega's clients accept no unknown error about an append."""
QUOTA_HELD = 66
"""Likewise, and only for ``OWN_TOKEN``: for any other client, appends that a quota delays wait in the server."""
QUOTA_EXCEEDED = 67
"""For every client. The message is a sentence, then a line end, then the error's fields as a JSON object."""
RETENTION_HOLD = 68
"""Likewise: a hold forbids the removal."""
WRITER_FORGOTTEN = 69
"""Likewise, only in answer to a setup: what the writer has sent may or may not be stored."""
OWN_TOKEN = "penstock"
"""In the token field of a request, which is empty without authorization: the client knows our own codes."""
_OWN_PREFIX = f"{OWN_TOKEN} "
_MESSAGE_MAX = 1000  # characters of a message in a reply
_FIELDS_MAX = 30_000  # characters; a string of the protocol has 65,535 bytes


def reply_of(error: PenstockError, rid: int, segment: str, *, offset: int = c.NO_OFFSET) -> Command | None:
    """The reply that reports ``error`` about ``segment``, spelled as the client spelled it.

    ``offset`` is the read offset, or the event number of a failed append. None: the protocol cannot express the error.
    The connection is closed; the client reconnects and retries.
    """
    reply: Command | None = None
    match error:
        case SegmentSealedError():
            reply = c.SegmentIsSealed(rid, segment, "", offset)
        case AccessError():
            reply = c.AuthTokenCheckFailed(rid, "", TOKEN_EXPIRED if error.fields.get("expired") else TOKEN_INVALID)
        case KeyNotFoundError():
            reply = t.TableKeyDoesNotExist(rid, segment)
        case BadKeyVersionError():
            reply = t.TableKeyBadVersion(rid, segment)
        case NotFoundError():
            reply = c.NoSuchSegment(rid, segment, "", offset)
        case AlreadyExistsError():
            reply = c.SegmentAlreadyExists(rid, segment)
        case NotEmptyError():
            reply = t.TableSegmentNotEmpty(rid, segment)
        case TruncatedError():
            reply = c.SegmentIsTruncated(rid, segment, error.start_offset, "", offset)
        case FencedError():
            # Another owner serves it, or soon will: the client asks the controller again.
            reply = c.WrongHost(rid, segment, "")
        case UnsupportedError():
            reply = c.OperationUnsupported(rid, error.message)
        case CorruptDataError():
            reply = c.ErrorMessage(rid, segment, str(error)[:_MESSAGE_MAX], DAMAGED)
        case StorageFullError():
            reply = c.ErrorMessage(rid, segment, str(error)[:_MESSAGE_MAX], STORAGE_FULL)
        case QuotaHeldError():
            reply = c.ErrorMessage(rid, segment, _with_fields(error), QUOTA_HELD)
        case QuotaExceededError():
            reply = c.ErrorMessage(rid, segment, _with_fields(error), QUOTA_EXCEEDED)
        case RetentionHoldError():
            reply = c.ErrorMessage(rid, segment, _with_fields(error), RETENTION_HOLD)
        case WriterForgottenError():
            reply = c.ErrorMessage(rid, segment, _with_fields(error), WRITER_FORGOTTEN)
        case InvalidArgumentError():
            reply = c.ErrorMessage(rid, segment, str(error)[:_MESSAGE_MAX], ILLEGAL_ARGUMENT)
    return reply


def is_own(request: Command) -> bool:
    """Whether the client that sent the request knows our own codes."""
    token: str | None = getattr(request, "token", None)
    return token is not None and (token == OWN_TOKEN or token.startswith(_OWN_PREFIX))


def own_token(token: str) -> str:
    """A token as our own client sends it; empty: without authorization."""
    return _OWN_PREFIX + token if token else OWN_TOKEN


def plain_token(token: str) -> str:
    """The token that a client sent, without the mark of our own."""
    return token.removeprefix(_OWN_PREFIX)


def must_wait(error: PenstockError, request: Command) -> bool:
    """Whether no reply can express the error: the server retries the request, then the client reconnects and
    retries."""
    return isinstance(error, ThrottledError) or (
        isinstance(error, StorageFullError | QuotaHeldError) and not is_own(request)
    )


def _with_fields(error: PenstockError) -> str:
    fields = json.dumps(error.fields, default=str)
    text = str(error)[:_MESSAGE_MAX].replace("\n", " ")
    return f"{text}\n{fields}" if len(fields) <= _FIELDS_MAX else text


def _fields_of(message: str, segment: str) -> dict[str, Any]:
    text, _, encoded = message.partition("\n")
    try:
        fields = json.loads(encoded)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        fields = {"reason": text}
    fields.pop("message", None)  # No error of ours has this field, and it is the name of an argument.
    return fields | {"segment": segment}


def error_of(reply: Command, segment: str) -> PenstockError:
    """The error that a reply reports. A reply that is not an error gives InternalError: it does not belong to the
    request."""
    error: PenstockError
    match reply:
        case c.SegmentIsSealed():
            error = SegmentSealedError("segment is sealed", segment=segment, length_bytes=None)
        case c.NoSuchSegment():
            error = SegmentNotFoundError("no such segment", segment=segment)
        case c.SegmentAlreadyExists():
            error = AlreadyExistsError("segment exists", segment=segment)
        case c.SegmentIsTruncated(start_offset=start, offset=offset):
            error = TruncatedError("data is truncated", segment=segment, start_offset=start, offset=offset)
        case c.WrongHost():
            error = ContainerOfflineError("segment is not served by this store", segment=segment)
        case c.OperationUnsupported(operation=operation):
            error = UnsupportedError("operation is not offered", operation=operation, segment=segment)
        case c.AuthTokenCheckFailed(code=code) if code == TOKEN_EXPIRED:
            error = UnauthenticatedError("the token has expired", segment=segment, expired=True)
        case c.AuthTokenCheckFailed():
            reason = "the store refuses this caller; reading needs the action read on the stream, writing needs write"
            error = PermissionDeniedError(reason, segment=segment)
        case c.ErrorMessage(message=message, code=0):
            error = InvalidArgumentError("store refused the request", reason=message, segment=segment)
        case c.ErrorMessage(message=message, code=64):
            error = CorruptDataError("stored data is damaged", reason=message, segment=segment)
        case c.ErrorMessage(message=message, code=65):
            error = StorageFullError("disk of the store is full", reason=message, segment=segment)
        case c.ErrorMessage(message=message, code=66):
            error = QuotaHeldError("backlog quota is reached, the append has to wait", **_fields_of(message, segment))
        case c.ErrorMessage(message=message, code=67):
            error = QuotaExceededError("backlog quota is reached", **_fields_of(message, segment))
        case c.ErrorMessage(message=message, code=68):
            error = RetentionHoldError("a hold forbids the removal", **_fields_of(message, segment))
        case c.ErrorMessage(message=message, code=69):
            fields = _fields_of(message, segment)
            error = WriterForgottenError("writer was silent for so long that its last number was forgotten", **fields)
        case c.ErrorMessage(message=message):
            error = InternalError("store failed", reason=message, segment=segment)
        case t.TableSegmentNotEmpty():
            error = NotEmptyError("table is not empty", segment=segment)
        case t.TableKeyDoesNotExist():
            error = KeyNotFoundError("key does not exist", segment=segment)
        case t.TableKeyBadVersion():
            error = BadKeyVersionError("key has another version", segment=segment)
        case c.InvalidEventNumber(event_number=number):
            error = WriterFencedError("another writer took over", segment=segment, event_number=number)
        case c.ConditionalCheckFailed(event_number=number):
            error = ConditionFailedError("segment has another length", segment=segment, event_number=number)
        case _:
            error = InternalError("reply does not fit the request", reply=type(reply).__name__, segment=segment)
    return error
