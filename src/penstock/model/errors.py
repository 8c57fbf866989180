"""Errors, split by what the caller does next: fix the call, refresh and retry, back off and retry, re-open, skip, stop.

Every error carries its fields by name (``error.fields``), prints as constant text followed by ``name=value`` with times
in UTC, and survives pickling to another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from penstock.model.redaction import redacted, redacted_address

_E = TypeVar("_E", bound=BaseException)


class PenstockError(Exception):
    """Base of all errors raised on purpose. Secrets in URLs are hidden in the message and fields when it is created."""

    def __init__(self, message: str, **fields: Any) -> None:
        message = redacted(message)
        fields = {name: _shown(name, value) for name, value in fields.items()}
        super().__init__(message, fields)
        self.message = message
        self.fields: dict[str, Any] = fields

    def __str__(self) -> str:
        if not self.fields:
            return self.message
        stop = "" if self.message.endswith((".", "?", "!")) else "."
        return f"{self.message}{stop} " + " ".join(_text(name, value) for name, value in self.fields.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


_MOMENTS = frozenset(
    {"at_ms", "deadline_ms", "due_ms", "ends_ms", "expires_ms", "from_ms", "since_ms", "to_ms", "until_ms"}
)
"""Fields with a wall-clock time, in milliseconds since the Unix epoch."""
_CLOCK_MIN_MS = 100_000_000_000  # March 1973: a smaller number is more likely a duration, or a mistake to show as it is
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _text(name: str, value: object) -> str:
    """A field for people: ``name=value``, and times in UTC."""
    if name in _MOMENTS and isinstance(value, int) and value >= _CLOCK_MIN_MS:
        with suppress(OverflowError):
            return f"{name.removesuffix('_ms')}={_EPOCH + timedelta(milliseconds=value):%Y-%m-%dT%H:%M:%SZ}"
    return f"{name}={value}"


def _rebuild(kind: type[PenstockError], message: str, fields: dict[str, Any]) -> PenstockError:
    return kind(message, **fields)


_PLACES = frozenset({"address", "controller", "data", "endpoint", "path", "place", "tier2", "url"})
"""Fields that may contain a user and a password without a scheme in front."""


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return redacted_address(value) if name in _PLACES else redacted(value)
    return tuple(_shown(name, one) for one in value) if type(value) is tuple else value


def leaves(group: BaseExceptionGroup[_E]) -> Iterator[_E]:
    """The errors of a group, in order, those of groups within it too."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


# --- fix the call -----------------------------------------------------------------------------------------


class InvalidArgumentError(PenstockError):
    """The request can never succeed as it is. Nothing was changed; correct the named field."""


class InvalidNameError(InvalidArgumentError):
    """The name of a scope, stream, reader group, table or subscriber breaks the naming rules."""


class InvalidCutError(InvalidArgumentError):
    """A stream cut does not describe one consistent position of its stream, or lies outside the allowed range."""


class SchemaRegistryRefusedError(InvalidArgumentError):
    """The schema registry refuses the caller. Correct its credentials or rights. Fields: ``url``; ``status``."""


class TimeGoesBackError(InvalidArgumentError):
    """A writer notes a time before the one that it noted last. Times of one writer only grow."""


class EventTooLargeError(InvalidArgumentError):
    """One event, key or value exceeds its limit."""


class TlsError(InvalidArgumentError):
    """The server cannot be verified, or only one side speaks TLS. No request was sent. Correct the address, or name the
    authorities to trust."""


class AccessError(PenstockError):
    """The caller may not do this. Nothing was changed, and no answer says whether the object exists."""


class UnauthenticatedError(AccessError):
    """The server does not know who calls: credentials are missing, wrong or expired. Give valid ones."""


class PlanExpiredError(UnauthenticatedError):
    """The token of a plan has expired, so the task cannot continue. Run the query again: it makes a new plan. A
    streaming query continues from its checkpoint."""


class PermissionDeniedError(AccessError):
    """The caller has no right to do this. Ask an administrator for it. Fields: ``call``; ``identity``; ``needs``, the right
    that is missing."""


class ProtocolError(InvalidArgumentError):
    """A peer sent bytes that no version of the protocol allows. Its connection is closed."""


class NotFoundError(PenstockError):
    """The named object does not exist (any more)."""


class ScopeNotFoundError(NotFoundError):
    """No such scope."""


class StreamNotFoundError(NotFoundError):
    """No such stream."""


class SegmentNotFoundError(NotFoundError):
    """No such segment: never created, deleted, or merged."""


class TransactionNotFoundError(NotFoundError):
    """No such transaction, open or remembered."""


class ReaderGroupNotFoundError(NotFoundError):
    """No such reader group, or it was deleted and created anew under this name."""


class TableNotFoundError(NotFoundError):
    """No such key-value table."""


class SubscriberNotFoundError(NotFoundError):
    """The reader group is not a subscriber of the stream."""


class ClusterNotFoundError(NotFoundError):
    """The coordinator holds no cluster at this root, or one whose creation was not finished. Correct the root, or create
    the cluster. Fields: ``root``."""


class NodeNotFoundError(NotFoundError):
    """The coordinator has no such node, or none above the one to create. Fields: ``node``, its path."""


class SchemaNotFoundError(NotFoundError):
    """The schema registry has no such schema or subject. Fields: ``id`` or ``subject``."""


class KeyNotFoundError(NotFoundError):
    """A conditional table change named a version of a key that is absent."""


# --- refresh and retry ------------------------------------------------------------------------------------


class ConflictError(PenstockError):
    """The state has changed since the caller read it. Refresh, then decide again."""


class AlreadyExistsError(ConflictError):
    """The name is taken. The existing object is unchanged."""


class NotEmptyError(ConflictError):
    """A scope or table is not empty."""


class SegmentSealedError(ConflictError):
    """The segment takes no more appends. Refresh the segments, then append to a successor.

    Fields: ``segment``; ``length_bytes``.
    """


class StreamSealedError(ConflictError):
    """The stream takes no more events, cuts or scaling."""

    TO_WRITE = "stream is sealed; a sealed stream accepts no more events, write to another one"
    TO_CHANGE = "stream is sealed; a sealed stream cannot be changed, only read or deleted"


class StreamNotSealedError(ConflictError):
    """A stream must be sealed before it is deleted."""


class ConditionFailedError(ConflictError):
    """A conditional append expected another length, or an attribute another value.

    Fields: ``expected``; ``actual``.
    """


class BadKeyVersionError(ConflictError):
    """A conditional table change expected another version of a key."""


class WrongClusterError(ConflictError):
    """The coordinator holds another cluster at this root. Nothing was changed. Fields: ``root``; ``expected`` and
    ``found``, the ids of the clusters."""


class NodeChangedError(ConflictError):
    """A node of the coordinator has another version than expected: somebody else changed it first. Nothing was changed.

    Fields: ``node``, its path; ``expected``, the version.
    """


class WriterFencedError(ConflictError):
    """The writer's event number does not follow the stored one: another connection took over the writer id."""


class WriterForgottenError(ConflictError):
    """The writer was silent for so long that the store forgot which of its events it holds. Nothing was written.

    Unacknowledged events may or may not be stored. Fields: ``segment`` and ``floor_ms``, the creation time from which
    ids of new writers are accepted; or ``stream`` and ``writer``.
    """


class ReaderFencedError(ConflictError):
    """A newer reader of the same name is in the group. This one returns no more events. Fields: ``group``; ``reader``."""


class NotCommittedError(ConflictError):
    """The reader lost the segment before the commit. Nothing was recorded: undo the work since the last commit, or expect
    its events again. The reader continues with the segments that it has now. Fields: ``group``; ``reader``."""


class TransactionStateError(ConflictError):
    """The transaction is past the state in which this verb applies. Fields: ``txn``; ``state``."""


class GenerationMismatchError(ConflictError):
    """The reader group was changed since the caller read it."""


class WriterInUseError(ConflictError):
    """The name of a writer, or of a subscriber, belongs to another query or run. Nothing was written or moved.

    Fields: ``writer`` or ``subscriber``; ``owner``, the query that owns the name; ``query``, the one that was refused.
    """


class IncompatibleSchemaError(ConflictError):
    """The schema does not fit the earlier ones of its subject, and was not registered. Nothing was written.

    Fields: ``subject``; ``reason``, as the registry gives it.
    """


class ScaleConflictError(ConflictError):
    """A scale is in flight, or its segments are no longer the active ones."""


class TruncatedError(ConflictError):
    """The requested data has been truncated. Fields: ``segment``; ``start_offset``, where data begins now."""

    @property
    def start_offset(self) -> int:
        return int(self.fields["start_offset"])


class RetentionHoldError(ConflictError):
    """A hold forbids the removal. Fields: ``hold``; ``owner``; ``reason``."""


class RetentionLockError(RetentionHoldError):
    """A lock of a retention policy forbids the call until its date. Nothing was changed; a longer retention is allowed.

    Fields: ``lock_until``; ``level``, whose policy has the lock; ``stream`` or ``scope`` where one is meant.
    """


class ApprovalRequiredError(ConflictError):
    """Another identity must approve this first. Nothing was changed; the request is recorded, do not repeat the call.

    The store performs it once it is approved. Fields: ``request``, its id (absent if none could be recorded); ``action``;
    ``target``; ``expires_ms``.
    """


class ErasureDeferredError(ConflictError):
    """A hold covers some of the events. The erasure is recorded, and continues once no hold covers them.

    Do not repeat the request with another id: wait, or withdraw it. Fields: ``erasure``; ``hold``, ``owner`` and
    ``reason`` of the first hold; ``holds``, the number of holds; ``since_ms``.
    """


class ErasureWithdrawnError(ConflictError):
    """The erasure was withdrawn before it began, and erased nothing. Its id cannot be used again.

    Fields: ``erasure``; ``who``, ``why`` and ``at_ms`` of the withdrawal.
    """


class QuotaExceededError(ConflictError):
    """The backlog quota is reached and its policy refuses writers. Fields: ``stream``; ``rule``; ``limit``; ``used``;
    ``subscriber``, the one that is furthest behind."""


# --- back off and retry -----------------------------------------------------------------------------------


class UnavailableError(PenstockError):
    """Nothing was decided against the request; try again after a pause."""


class NotConnectedError(UnavailableError):
    """The connection is lost. Requests in flight may or may not have happened; writer ids make a retry safe."""


class CoordinatorUnavailableError(UnavailableError):
    """The coordinator does not answer. Nothing was changed."""


class UnknownOutcomeError(UnavailableError):
    """The connection to the coordinator was lost during a change. It may have happened, may still happen, or never will.

    Read, then decide again.
    """


class ThrottledError(UnavailableError):
    """A bounded resource is full. Fields: ``resource``; ``limit``."""


class StorageFullError(UnavailableError):
    """The disk or its budget is full. Truncation, deletion and reads still work."""


class NotEnoughBookiesError(UnavailableError):
    """Fewer bookies can be written to than the log needs. Fields: ``registered``, ``refused``: names of bookies."""


class KeptBySnapshotError(UnavailableError):
    """A snapshot outside the store keeps bytes that an erasure deletes. Delete the snapshot; the store keeps trying.

    Fields: ``snapshot``.
    """


class ErasureWaitsError(UnavailableError):
    """The erasure is decided, and several attempts to perform it failed. The store keeps trying; wait, or fix the
    cause.

    Fields: ``erasure``; ``cause``: ``no space``, ``damage`` or ``error``; ``waits_for``: the error, for people; ``tries``.
    """


class QuotaHeldError(UnavailableError):
    """The backlog quota is reached and its policy lets writers wait. Same fields as ``QuotaExceededError``."""


class SchemaRegistryUnavailableError(UnavailableError):
    """The schema registry does not answer. Events of schemas that are already known can still be read and written.

    Fields: ``url``; ``status`` or ``cause``.
    """


class AddressInUseError(UnavailableError):
    """The address to listen on is taken, or is not one of this host. Fields: ``host``; ``port``."""


class DeadlineExceededError(UnavailableError):
    """The caller's deadline passed first. The request may or may not have happened."""


# --- re-open ----------------------------------------------------------------------------------------------


class FencedError(PenstockError):
    """A newer owner took over. This one acknowledges nothing more; open the resource again."""


class ContainerOfflineError(FencedError):
    """The container stopped after a failed write or sync. The outcome of unacknowledged requests is unknown; recover
    first."""


class SessionEndedError(FencedError):
    """The session with the coordinator ended, and its registrations are deleted. A change in flight may or may not have
    happened. Open a new session. Fields: ``session``."""


class ForkedError(PenstockError):
    """The object was opened before a fork and belongs to the parent process. This process is the forked child.

    Open the store again in the child. Fields: ``pid``; ``parent_pid``.
    """


# --- skip -------------------------------------------------------------------------------------------------


class DecodeError(PenstockError):
    """One event is not what its reader expects. The reader is unharmed: go on with the next event, or use the bytes."""


class NotARecordError(DecodeError):
    """The event is not a record. ``event.data`` has its bytes. Fields: ``size_bytes``; ``begins``, in hex."""


# --- stop -------------------------------------------------------------------------------------------------


class CorruptDataError(PenstockError):
    """Stored bytes fail their checksum or contradict each other. Nothing was deleted or changed."""


class UnsearchableEventError(PenstockError):
    """An event is nested too deeply to be searched, so it is unknown whether it matches. Search it in another form,
    such as its bytes. Nothing was changed."""


class DamagedRowError(CorruptDataError):
    """One row of the metadata fails its checksum; the rows around it can be read. Fields: ``key``, in hex."""

    @property
    def row_key(self) -> bytes:
        return bytes.fromhex(self.fields["key"])


class VersionTooNewError(PenstockError):
    """The data was written by a newer version. Nothing was changed; use that version or a later one."""


class DirectoryInUseError(PenstockError):
    """Another process owns the data directory."""


class UnsupportedError(PenstockError):
    """The operation is known but not supported here."""


class MissingExtraError(UnsupportedError):
    """A Python package that an optional feature needs is not installed. Nothing was changed.

    Fields: ``package``; ``extra``, the extra of ``penstock`` that installs it.
    """


def missing_extra(package: str, extra: str) -> MissingExtraError:
    """Return the error that explains how to install the extra with ``package``."""
    return MissingExtraError(
        f"the package {package} is not installed: pip install 'penstock[{extra}]'", package=package, extra=extra
    )


class InternalError(PenstockError):
    """An invariant of our own is broken. Report it; the fields say which."""
