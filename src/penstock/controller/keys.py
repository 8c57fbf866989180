"""Keys of the controller's table. Names hold no slash, so a prefix that ends in one selects exactly one owner's keys.

Source: docs/formats/metadata.md.
"""

from __future__ import annotations

from uuid import UUID

from penstock.model.errors import CorruptDataError, InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX

TABLE = "_system/_tables/controller"

TRANSACTION_COUNTER = b"counter/transaction"
NUMBER_FLOOR = b"counter/number"
NUMBERS = b"number/"
ERASURES = b"erasure/"
WRITER_MARKS = b"writer-mark/"
ERASURE_MARKS = b"erasure-work/"
ERASURE_CHAIN = b"erasure-chain"
ERASURE_FEED = b"erasure-feed"
CASES = b"case/"


def encoded(text: str) -> bytes:
    """A key, or a part of one. Raises InvalidArgumentError if a name in it has no UTF-8 form: no record has such a key."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError("name is not text", key=ascii(text[:80])) from error


def scope(name: str) -> bytes:
    return encoded(f"scope/{name}")


def stream(name: StreamName) -> bytes:
    return encoded(f"stream/{name}")


def epochs(name: StreamName) -> bytes:
    return encoded(f"epoch/{name}/")


def epoch(name: StreamName, number: int) -> bytes:
    return encoded(f"epoch/{name}/{number:010}")


def lengths(name: StreamName) -> bytes:
    return encoded(f"length/{name}/")


def lengths_sealed_by(name: StreamName, number: int) -> bytes:
    """Lengths of the segments that were active before epoch ``number`` and not in it."""
    return encoded(f"length/{name}/{number:010}")


def head(name: StreamName) -> bytes:
    return encoded(f"head/{name}")


def number(name: StreamName) -> bytes:
    """The first segment number of the next stream of this name."""
    return encoded(f"number/{name}")


def policy(name: StreamName) -> bytes:
    """There is one for each stream that has a policy document of its own."""
    return encoded(f"policy/{name}")


def policies_of(scope_name: str | None) -> bytes:
    """Prefix of ``policy`` for the streams of a scope, or for all."""
    return b"policy/" if scope_name is None else encoded(f"policy/{scope_name}/")


SCOPE_POLICIES = b"scope-policy/"
SERVER_POLICY = b"server-policy"


def scope_policy(name: str) -> bytes:
    return encoded(f"scope-policy/{name}")


def quota(name: StreamName) -> bytes:
    """There is one for each stream whose appends are limited, so that a starting store can read them before it
    serves."""
    return encoded(f"quota/{name}")


APPROVALS = b"approval/"
APPROVAL_RULES = b"approval-rule/"


def approval(request: str) -> bytes:
    """A request for approval."""
    return encoded(f"approval/{request}")


def approval_rule(target: str) -> bytes:
    """The actions that need approval at a level: ``scope/stream``, a scope, or empty for the server."""
    return encoded(f"approval-rule/{target}")


def holds(scope_name: str | None) -> bytes:
    """Prefix of the holds of a scope, or of all."""
    return b"hold/" if scope_name is None else encoded(f"hold/{scope_name}/")


def hold(scope_name: str, hold_id: str) -> bytes:
    return encoded(f"hold/{scope_name}/{hold_id}")


def hold_place(hold_id: str) -> bytes:
    """Holds the scope of the hold. No two holds of the store have the same id."""
    return encoded(f"hold-id/{hold_id}")


def transactions(name: StreamName) -> bytes:
    return encoded(f"txn/{name}/")


def transaction(name: StreamName, txn: UUID) -> bytes:
    return encoded(f"txn/{name}/{txn.hex}")


def kept_transactions(name: StreamName) -> bytes:
    return encoded(f"txn-kept/{name}/")


def kept_transaction(name: StreamName, txn: UUID) -> bytes:
    """There is one for each transaction whose record a repair removed, but not its segments."""
    return encoded(f"txn-kept/{name}/{txn.hex}")


def joins(name: StreamName) -> bytes:
    return encoded(f"join/{name}/")


def join(name: StreamName, key: UUID) -> bytes:
    """There is one for each open transaction that several writers share."""
    return encoded(f"join/{name}/{key.hex}")


def completed(name: StreamName, txn: UUID) -> bytes:
    return encoded(f"done/{name}/{txn.hex}")


def completed_of(name: StreamName) -> bytes:
    return encoded(f"done/{name}/")


def completions(name: StreamName) -> bytes:
    return encoded(f"done-at/{name}/")


def completion(name: StreamName, at_ms: int, txn: UUID) -> bytes:
    """The time counts down: scans are in key order, and callers want the newest first."""
    return encoded(f"done-at/{name}/{LONG_MAX - at_ms:016x}/{txn.hex}")


def txn_of(key: bytes) -> UUID:
    """The transaction whose id ends the key. Raises CorruptDataError if the key has no id."""
    try:
        return UUID(hex=key.rsplit(b"/", 1)[1].decode())
    except (ValueError, IndexError) as error:
        raise CorruptDataError("metadata key names no transaction", key=key[:80]) from error


def queue(name: StreamName) -> bytes:
    return encoded(f"queue/{name}/")


def queue_place(key: bytes) -> int:
    """The place of a ``queue_entry``. Raises CorruptDataError if the key has none."""
    try:
        return int(key.rsplit(b"/", 1)[1], 16)
    except (ValueError, IndexError) as error:
        raise CorruptDataError("metadata key has no place in the queue", key=key[:80]) from error


def queue_entry(name: StreamName, sequence: int) -> bytes:
    return encoded(f"queue/{name}/{sequence:016x}")


def position_commits(group: str) -> bytes:
    return encoded(f"position-commit/{group}/")


def position_commit(group: str, reader: str) -> bytes:
    """The last commit of positions with transactions by the reader, whose name may hold a slash."""
    return encoded(f"position-commit/{group}/{reader}")


def batches(name: StreamName) -> bytes:
    return encoded(f"batch/{name}/")


def batch(name: StreamName, writer: str) -> bytes:
    return encoded(f"batch/{name}/{writer}")


def forgotten(name: StreamName) -> bytes:
    return f"forgotten/{name}/".encode()


def forgotten_names(name: StreamName, digest: bytes) -> bytes:
    """Forgotten names of writers whose digests begin with the same byte."""
    return f"forgotten/{name}/{digest[0]:02x}".encode()


def subscribers(name: StreamName) -> bytes:
    return encoded(f"subscriber/{name}/")


def subscriber(name: StreamName, group: str) -> bytes:
    return encoded(f"subscriber/{name}/{group}")


def writer_marks(name: StreamName) -> bytes:
    return encoded(f"writer-mark/{name}/")


def writer_mark(name: StreamName, writer: str) -> bytes:
    """What the writer, whose name may hold a slash, has noted."""
    return encoded(f"writer-mark/{name}/{writer}")


def stream_of_mark(key: bytes) -> StreamName:
    """The stream of a ``writer_mark``. Raises ValueError where the key has none."""
    scope_name, stream_name, _ = key[len(WRITER_MARKS) :].decode().split("/", 2)
    return StreamName(scope_name, stream_name)


def watermark(name: StreamName) -> bytes:
    return encoded(f"watermark/{name}")


def tails(name: StreamName) -> bytes:
    return encoded(f"tail/{name}/")


def tail(name: StreamName, time_ms: int) -> bytes:
    return encoded(f"tail/{name}/{time_ms:016x}")


def retention_set(name: StreamName) -> bytes:
    """Changed with every change of the ``tails``."""
    return encoded(f"tails/{name}")


def past_truncations(name: StreamName) -> bytes:
    return encoded(f"gone/{name}")


def left(name: StreamName) -> bytes:
    """When a subscriber last left the stream."""
    return encoded(f"left/{name}")


def evictions(name: StreamName) -> bytes:
    return encoded(f"evicted/{name}")


def group(full_name: str) -> bytes:
    return encoded(f"group/{full_name}")


def work(name: StreamName) -> bytes:
    """Each stream with an unfinished workflow has one. It may be left over from a finished one."""
    return encoded(f"work/{name}")


def group_work(full_name: str) -> bytes:
    return encoded(f"group-work/{full_name}")


def scope_work(name: str) -> bytes:
    return encoded(f"scope-work/{name}")


def owned_by(name: StreamName) -> tuple[bytes, ...]:
    """Prefixes of the records that are deleted with a stream."""
    return (
        epochs(name),
        lengths(name),
        transactions(name),
        kept_transactions(name),
        joins(name),
        completed_of(name),
        completions(name),
        queue(name),
        batches(name),
        forgotten(name),
        subscribers(name),
        tails(name),
        writer_marks(name),
    )


def owned_singly(name: StreamName) -> tuple[bytes, ...]:
    """Keys of the other records that are deleted with a stream, except its own record and its work marker."""
    return (
        head(name),
        evictions(name),
        policy(name),
        quota(name),
        retention_set(name),
        past_truncations(name),
        left(name),
        watermark(name),
    )


def erasure(erasure_id: str) -> bytes:
    return encoded(f"erasure/{erasure_id}")


def erasure_mark(erasure_id: str) -> bytes:
    """There is one for each erasure that is not done."""
    return encoded(f"erasure-work/{erasure_id}")


def erasure_parts(erasure_id: str, run: str = "") -> bytes:
    """Prefix of the parts of one run, or (empty) of all runs. Parts of earlier versions have no run in their keys."""
    return encoded(f"erasure-part/{erasure_id}/{run}/") if run else encoded(f"erasure-part/{erasure_id}/")


def erasure_part(erasure_id: str, run: str, page: int, segment: int) -> bytes:
    return encoded(f"erasure-part/{erasure_id}/{run}/{page:08}/{segment:016x}")


def erasure_chunks(erasure_id: str) -> bytes:
    return encoded(f"erasure-chunks/{erasure_id}/")


def erasure_chunk(erasure_id: str, number: int) -> bytes:
    return encoded(f"erasure-chunks/{erasure_id}/{number:08}")


def case(case_id: str) -> bytes:
    return encoded(f"case/{case_id}")


def case_streams(case_id: str) -> bytes:
    """Prefix of the records of a case, one for each stream that it has searched."""
    return encoded(f"case-stream/{case_id}/")


def case_stream(case_id: str, name: StreamName) -> bytes:
    return encoded(f"case-stream/{case_id}/{name}")
