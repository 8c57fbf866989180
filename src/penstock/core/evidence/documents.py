"""Documents about what was removed and held: what they state, and the bytes that are signed.

A statement follows from audit entries, so a verifier computes it again from them. Source: docs/formats/evidence.md.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.core.segments.erasure_receipt import canonical

FORMAT: Final = 1
EVIDENCE, CONSISTENCY, EXPORT, HISTORY = "evidence", "consistency", "audit-export", "audit-keys"
"""Values of ``penstock``, the first field of a document."""

ERASURE, DISPOSAL, HOLD = "erasure", "disposal", "hold"
"""Kinds of evidence."""

REMOVALS: Final = ("truncate", "expire", "evict", "delete", "release", "erase")
"""Kinds of audit entries that a certificate of disposal lists."""

HOLDS: Final = ("hold", "unhold")

Entry = Mapping[str, Any]


def signed_bytes(document: Mapping[str, Any]) -> bytes:
    """What the signature of a document covers: all fields but the signature."""
    body = {name: value for name, value in document.items() if name != "signature"}
    return b"penstock-evidence 1\n" + canonical(body)


def rotation_bytes(old: str, new: str) -> bytes:
    """What the old key signs when a new one replaces it. Both are in the form of ``VerifierKey.text``."""
    return f"penstock-key-rotation 1\n{old}\n{new}\n".encode()


def is_removal(entry: Entry, target: str, from_ms: int, to_ms: int) -> bool:
    """Whether a certificate of disposal about the target and the time lists the entry."""
    about = entry.get("target")
    concerns = about == target or ("/" not in target and str(about).startswith(f"{target}/"))
    return concerns and entry.get("kind") in REMOVALS and from_ms <= int(entry.get("at_ms") or 0) < to_ms


def disposal_statement(entries: Sequence[Entry], *, target: str, from_ms: int, to_ms: int) -> dict[str, Any]:
    """What was removed from the target in ``from_ms <= time < to_ms``, milliseconds since the Unix epoch.

    ``bytes`` and ``events`` are sums over truncations and erasures; ``events`` is null where one of them is not known.
    """
    gone = [entry for entry in entries if entry.get("kind") in ("truncate", "erase")]
    events = [entry.get("events") for entry in gone]
    return {
        "target": target,
        "from_ms": from_ms,
        "to_ms": to_ms,
        "removals": len(entries),
        "bytes": sum(int(entry.get("bytes") or 0) for entry in gone),
        "events": None if None in events else sum(int(count or 0) for count in events),
    }


def hold_statement(entries: Sequence[Entry]) -> dict[str, Any]:
    """The state of a hold after its audit entries, oldest first; there is at least one."""
    last = entries[-1]
    # A lifted hold can be placed again under its id.
    is_again = len(entries) > 1 and entries[-2].get("kind") == "hold"
    state = "lifted" if last.get("kind") == "unhold" else "extended" if is_again else "placed"
    return {
        "hold": last.get("hold"),
        "target": last.get("target"),
        "state": state,
        "owner": last.get("owner"),
        "until_ms": last.get("until_ms"),
    }


def erasure_problems(receipt: Mapping[str, Any], entries: Sequence[Entry]) -> list[str]:
    """Why the entry of the log is not about this receipt; empty if it is."""
    if len(entries) != 1 or entries[0].get("kind") != "erase":
        return ["no entry of the log is about the erasure"]
    names = ("erasure", "sha256", "sequence", "identity")
    return [f"the log has another {name} of the receipt" for name in names if entries[0].get(name) != receipt.get(name)]


def parsed(entry: str) -> Entry:
    """An entry of the log. Raises ValueError."""
    found = json.loads(entry)
    if not isinstance(found, dict):
        raise ValueError("an entry is not a JSON object")
    return found


# --- writing documents ---------------------------------------------------------------------------------------------


def line(document: Mapping[str, Any]) -> str:
    """The document as a file: one line."""
    return canonical(document).decode() + "\n"


def _texts(hashes: Sequence[bytes]) -> list[str]:
    return [b64encode(item).decode() for item in hashes]


def export_head(
    start: int, edge: Sequence[bytes], checkpoint: str, rotations: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """The first line of an export. The entries from number ``start`` follow, one a line, up to the checkpoint."""
    return {
        "penstock": EXPORT,
        "format": FORMAT,
        "start": start,
        "edge": _texts(edge),
        "checkpoint": checkpoint,
        "rotations": list(rotations),
    }


def consistency(old: str, new: str, proof: Sequence[bytes], rotations: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """The proof that the checkpoint ``new`` continues ``old``. Both are notes."""
    return {
        "penstock": CONSISTENCY,
        "format": FORMAT,
        "checkpoints": [old, new],
        "proof": _texts(proof),
        "rotations": list(rotations),
    }


def history(rotations: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """The key rotations of a log, oldest first: each has ``old``, ``new`` and the ``signature`` of the old key."""
    return {"penstock": HISTORY, "format": FORMAT, "rotations": list(rotations)}


def evidence(
    kind: str,
    statement: Mapping[str, Any],
    entries: Sequence[tuple[str, Sequence[bytes]]],
    *,
    checkpoint: str,
    rotations: Sequence[Mapping[str, str]],
    issued_ms: int,
) -> dict[str, Any]:
    """A document without its signature. ``entries``: each with its proof that it is in the log of the checkpoint."""
    return {
        "penstock": EVIDENCE,
        "format": FORMAT,
        "kind": kind,
        "issued_ms": issued_ms,
        "statement": dict(statement),
        "entries": [{"entry": text, "proof": _texts(proof)} for text, proof in entries],
        "checkpoint": checkpoint,
        "rotations": list(rotations),
    }


def with_signature(document: Mapping[str, Any], key: str, signature: bytes) -> dict[str, Any]:
    """The document with the signature over ``signed_bytes``."""
    return {**document, "signature": {"key": key, "value": b64encode(signature).decode()}}
