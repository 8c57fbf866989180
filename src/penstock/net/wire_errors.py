"""Errors as replies of the wire protocol, and back."""

from __future__ import annotations

from penstock.codec import wire_commands as c
from penstock.codec.wire import Command
from penstock.model.errors import (
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
    SegmentNotFoundError,
    SegmentSealedError,
    TruncatedError,
    UnsupportedError,
    WriterFencedError,
)

ILLEGAL_ARGUMENT = 0
DAMAGED = 64
"""Our own code of an ErrorMessage. Pravega's clients take a code that they do not know for "unspecified"."""
_MESSAGE_MAX = 1000


def reply_of(error: PenstockError, rid: int, segment: str, *, offset: int = c.NO_OFFSET) -> Command | None:
    """The reply that says ``error`` about ``segment``, spelled as the client spelled it.

    ``offset`` is the read offset, or the event number of a failed append. None: the protocol has no words for the error;
    the connection is closed, and the client connects again and retries.
    """
    reply: Command | None = None
    match error:
        case SegmentSealedError():
            reply = c.SegmentIsSealed(rid, segment, "", offset)
        case KeyNotFoundError():
            reply = c.TableKeyDoesNotExist(rid, segment)
        case BadKeyVersionError():
            reply = c.TableKeyBadVersion(rid, segment)
        case NotFoundError():
            reply = c.NoSuchSegment(rid, segment, "", offset)
        case AlreadyExistsError():
            reply = c.SegmentAlreadyExists(rid, segment)
        case NotEmptyError():
            reply = c.TableSegmentNotEmpty(rid, segment)
        case TruncatedError():
            reply = c.SegmentIsTruncated(rid, segment, error.start_offset, "", offset)
        case FencedError():
            # Another owner serves it, or will: the client asks the controller again.
            reply = c.WrongHost(rid, segment, "")
        case UnsupportedError():
            reply = c.OperationUnsupported(rid, error.message)
        case CorruptDataError():
            reply = c.ErrorMessage(rid, segment, str(error)[:_MESSAGE_MAX], DAMAGED)
        case InvalidArgumentError():
            reply = c.ErrorMessage(rid, segment, str(error)[:_MESSAGE_MAX], ILLEGAL_ARGUMENT)
    return reply


def error_of(reply: Command, segment: str) -> PenstockError:
    """The error that a reply stands for. Anything but an error reply gives InternalError: the peer answered a question
    that was not asked."""
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
        case c.AuthTokenCheckFailed(code=code):
            error = InvalidArgumentError("token was refused", code=code, segment=segment)
        case c.ErrorMessage(message=message, code=0):
            error = InvalidArgumentError("store refused the request", reason=message, segment=segment)
        case c.ErrorMessage(message=message, code=64):
            error = CorruptDataError("stored data is damaged", reason=message, segment=segment)
        case c.ErrorMessage(message=message):
            error = InternalError("store failed", reason=message, segment=segment)
        case c.TableSegmentNotEmpty():
            error = NotEmptyError("table is not empty", segment=segment)
        case c.TableKeyDoesNotExist():
            error = KeyNotFoundError("key does not exist", segment=segment)
        case c.TableKeyBadVersion():
            error = BadKeyVersionError("key has another version", segment=segment)
        case c.InvalidEventNumber(event_number=number):
            error = WriterFencedError("another writer took over", segment=segment, event_number=number)
        case c.ConditionalCheckFailed(event_number=number):
            error = ConditionFailedError("segment has another length", segment=segment, event_number=number)
        case _:
            error = InternalError("reply does not fit the request", reply=type(reply).__name__, segment=segment)
    return error
