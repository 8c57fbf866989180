"""What HDFS and its client library raise, as errors that say what to do.

The library raises OSError with text alone, RuntimeError with the debug form of its own error, and panics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.model.errors import StorageFullError, UnavailableError

_RPC = re.compile(r'RPCError\("([\w.$]+)", "(.*)"\)', re.DOTALL)
_EXPLAINED = 250
"""Characters of a reason that HDFS gives; a Java stack follows."""

_QUOTAS = ("NSQuotaExceededException", "DSQuotaExceededException", "QuotaByStorageTypeExceededException")
_NO_ROOM = re.compile(r"could only be written to 0 of .*?There are (\d+) datanode\(s\) running", re.DOTALL)

_REASONS = (
    ("SafeModeException", "the namenode is in safe mode: wait until its datanodes have reported, or see"
     " `hdfs dfsadmin -safemode get`"),
    ("StandbyException", "the namenode is on standby: name the name service of the cluster, with its HADOOP_CONF_DIR,"
     " or the active namenode"),
    ("SIMPLE authentication is not enabled", "the cluster wants Kerberos: get a ticket with kinit, and set HADOOP_CONF_DIR"),
    ("NoSASLMechanism", "the cluster wants Kerberos: get a ticket with kinit, and set HADOOP_CONF_DIR"),
    ("GSSAPIError", "Kerberos refuses: check the ticket with klist"),
    ("SASLError", "Kerberos refuses: check the ticket with klist"),
    ("Connection refused", "nothing listens at this address: check host and port (dfs.namenode.rpc-address), and that the"
     " namenode runs"),
    ("RPC listener disconnected", "the connection ended: the namenode stopped, or the port is not that of its RPC"
     " (dfs.namenode.rpc-address)"),
    ("failed to lookup address", "the name of the namenode cannot be resolved"),
    ("No route to host", "no route to the namenode"),
    ("Network is unreachable", "no route to the namenode"),
    ("Failed to complete file in time", "no datanode confirmed the last block: check the datanodes"),
    ("UnsupportedFeature", "the directory has a feature that the client lacks, such as erasure coding: use a replicated one"
     " (`hdfs ec -setPolicy -replicate -path DIRECTORY`)"),
    ("UnsupportedErasureCodingPolicy", "the directory is erasure-coded: use a replicated one"
     " (`hdfs ec -setPolicy -replicate -path DIRECTORY`)"),
    ("BlocksNotFound", "no live datanode has the bytes: check `hdfs fsck` and the datanodes"),
    ("ChecksumError", "the bytes are damaged on all datanodes that were asked: check `hdfs fsck`"),
)  # fmt: skip


class DatanodeError(OSError):
    """Datanodes that the namenode named cannot be reached, or do not answer."""


@contextmanager
def datanode_call() -> Iterator[None]:
    """Raise DatanodeError if the library lost a connection: its own error does not name the peer."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DatanodeError(str(error)) from error


def is_without_room(error: BaseException) -> bool:
    """Whether the namenode knows no datanode for a block: all are full, too busy, or have not reported yet."""
    return _NO_ROOM.search(str(error)) is not None


def translated(error: BaseException, *, tier2: str, name: str) -> Exception:
    """The error for the caller of a port. Raises ``error`` itself if it comes neither from HDFS nor from the library."""
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"no such object: {name}")
    if not isinstance(error, OSError | RuntimeError) and type(error).__name__ != "PanicException":
        raise error
    text = str(error)
    match = _RPC.search(text)
    kind = match[1].rpartition(".")[2] if match else None
    said = _first_line(match[2] if match else text)
    if kind in _QUOTAS:
        return StorageFullError(
            "tier 2 is full: the quota of its directory in HDFS is used up (`hdfs dfs -count -q DIRECTORY`)",
            tier2=tier2,
            reason=said,
        )
    room = _NO_ROOM.search(text)
    if room is not None and room[1] != "0":
        return StorageFullError(
            "tier 2 is full: no datanode of HDFS takes a block (`hdfs dfsadmin -report`)",
            tier2=tier2,
            datanodes=int(room[1]),
        )
    if room is not None:
        reason = "the namenode has no live datanodes: check that they run and are registered"
    elif "All DataNodes failed: []" in text:
        reason = "no live datanode has the bytes: check the datanodes and `hdfs fsck`"
    elif isinstance(error, DatanodeError) or "DataTransferError" in text:
        reason = (
            f"datanodes cannot be reached ({said}). The namenode goes on naming one that died until it counts as dead"
            " (dfs.namenode.heartbeat.recheck-interval)"
        )
    elif kind == "AccessControlException":
        reason = f"{said}. Give the user this right (`hdfs dfs -chown`), or set HADOOP_USER_NAME"
    else:
        reason = next((explained for sign, explained in _REASONS if sign in text), said)
    return UnavailableError("HDFS refused the request", reason=reason, error=kind, tier2=tier2, object=name)


def _first_line(text: str) -> str:
    return re.split(r"\\n|\n", text.replace('\\"', '"'), maxsplit=1)[0][:_EXPLAINED].strip().rstrip(".")
