"""A log with a key, and everything that a store writes about it, made without a store."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from penstock.codec.notes import VerifierKey, checkpoint_text, signed_note
from penstock.core.cases.ledger import Ledger, LedgerErasure, ledger_lines, signed_text
from penstock.core.evidence import documents as d
from penstock.core.evidence.audit_log import chained, new_log
from penstock.core.evidence.merkle import Edge, Nodes, leaf_hash
from penstock.core.evidence.verify import verify
from penstock.core.segments.erasure_receipt import sealed
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId

VERIFY = Path(__file__).parents[2] / "scripts" / "verify.py"
SHORT, LONG = "hold", "erasure"


def other_verifier() -> ModuleType:
    """The verifier that uses nothing of the package."""
    spec = importlib.util.spec_from_file_location("verify_alone", VERIFY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ALONE = other_verifier()


def verdict(files: dict[str, bytes], keys: list[str], known: dict[str, bytes] | None = None) -> bool:
    """Whether everything holds; both verifiers must agree."""
    report = verify(files, keys, known=known)
    alone = [holds for _, holds, _ in ALONE.Verifier(keys).run(files, known or {})]
    assert report.holds == (False not in alone and True in alone), (report.findings, alone)
    return report.holds


class Log:
    """Entries of many kinds, numbered and chained as the controller does it."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self._secret = [self._key(0)]
        self.state = new_log(hashlib.sha256(seed.encode()).hexdigest()[:32], at=0, after=None)
        self.origin = self.state.origin
        self.entries: list[bytes] = []
        self.receipts: list[dict[str, Any]] = []
        self.rotations: list[dict[str, str]] = []

    def _key(self, number: int) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"{self.seed}/{number}".encode()).digest())

    @property
    def key(self) -> VerifierKey:
        public = self._secret[-1].public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return VerifierKey(name=self.origin, public=public)

    def rotate(self) -> None:
        old, secret = self.key.text, self._secret[-1]
        self._secret.append(self._key(len(self._secret)))
        signature = secret.sign(d.rotation_bytes(old, self.key.text))
        self.rotations.append({"old": old, "new": self.key.text, "signature": b64encode(signature).decode()})

    def add(self, kind: str) -> None:
        number = len(self.entries)
        fields: dict[str, Any] = {"v": 1, "at_ms": 1000 * number, "kind": kind, "target": f"s/{number % 3}"}
        if kind == "truncate":
            fields |= {"rule": "time", "bytes": number * 10, "events": number, "before": {}, "after": {"0": number}}
        elif kind == "hold":
            again = any(json.loads(entry)["kind"] == "hold" for entry in self.entries)
            fields |= {"hold": "h", "target": "s/1", "owner": "legal", "until_ms": number + again}
        elif kind == "erase":
            body = {"erasure": f"e{number}", "stream": "s/1", "where": {"events": 1, "bytes": 5}}
            last = self.receipts[-1] if self.receipts else None
            receipt = sealed(body, sequence=len(self.receipts) + 1, previous=last and last["sha256"])
            self.receipts.append(receipt)
            fields |= {name: receipt[name] for name in ("erasure", "sha256", "sequence")}
            fields |= {"target": "s/1", "bytes": 5, "events": 1}
        self.put(json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode())

    def put(self, entry: bytes) -> None:
        (numbered,), self.state, _ = chained(self.state, [entry])
        self.entries.append(numbered)

    # --- what a store writes -------------------------------------------------------------------------------------

    def edge(self, size: int) -> Edge:
        return Edge().add(map(leaf_hash, self.entries[:size]))

    def nodes(self) -> Nodes:
        return Nodes({}, dict(enumerate(map(leaf_hash, self.entries))))

    def checkpoint(self, size: int | None = None) -> str:
        size = len(self.entries) if size is None else size
        text = checkpoint_text(self.origin, size, self.edge(size).root())
        return signed_note(text, self.key, self._secret[-1].sign(text.encode()))

    def export(self, start: int = 0, end: int | None = None) -> bytes:
        end = len(self.entries) if end is None else end
        head = d.export_head(start, self.edge(start).hashes, self.checkpoint(end), self.rotations)
        return d.line(head).encode() + b"".join(entry + b"\n" for entry in self.entries[start:end])

    def consistency(self, before: int, size: int) -> bytes:
        proof = self.nodes().consistency(before, size)
        return d.line(d.consistency(self.checkpoint(before), self.checkpoint(size), proof, self.rotations)).encode()

    def history(self) -> bytes:
        return d.line(d.history(self.rotations)).encode()

    def evidence(self, kind: str, statement: Any, numbers: list[int], *, size: int | None = None) -> bytes:
        size = len(self.entries) if size is None else size
        nodes = self.nodes()
        found = [(self.entries[number].decode(), nodes.inclusion(number, size)) for number in numbers]
        body = d.evidence(
            kind, statement, found, checkpoint=self.checkpoint(size), rotations=self.rotations, issued_ms=5
        )
        return d.line(d.with_signature(body, self.key.text, self._secret[-1].sign(d.signed_bytes(body)))).encode()

    def numbers(self, kinds: tuple[str, ...]) -> list[int]:
        return [number for number, entry in enumerate(self.entries) if json.loads(entry)["kind"] in kinds]

    def erasure(self, place: int = -1) -> bytes:
        receipt = self.receipts[place]
        return self.evidence("erasure", {"receipt": receipt}, [self.numbers(("erase",))[place]])

    def disposal(self) -> bytes:
        about = {"target": "s", "from_ms": 0, "to_ms": 10**6}
        numbers = self.numbers(("truncate", "erase"))
        entries = [json.loads(self.entries[number]) for number in numbers]
        return self.evidence("disposal", d.disposal_statement(entries, **about), numbers)

    def hold(self) -> bytes:
        numbers = self.numbers(d.HOLDS)
        return self.evidence("hold", d.hold_statement([json.loads(self.entries[n]) for n in numbers]), numbers)

    def ledger(self) -> bytes:
        """A ledger of the erasures in the log, and of a case."""
        found = Ledger(
            exported_ms=7,
            erasures=[
                LedgerErasure(
                    erasure=item["erasure"],
                    stream=StreamName("s", "1"),
                    who="ann",
                    why="request\u2028 17",
                    sha256=item["sha256"],
                    ranges={SegmentId(0): [(8, 13)]},
                )
                for item in self.receipts
            ],
            cases=[
                {
                    "case": "c", "targets": ["s"], "subject": {"by": "payload contains", "left_out": 1}, "who": "ann",
                    "why": "request 17", "opened_ms": 1, "due_ms": 2, "state": "open", "ended": None,
                }
            ],
            rotations=self.rotations,
        )  # fmt: skip
        text = signed_text(found, self.origin)
        note = signed_note(text, self.key, self._secret[-1].sign(text.encode()))
        return b"".join(line + b"\n" for line in ledger_lines(replace(found, note=note)))

    def everything(self, before: int) -> dict[str, bytes]:
        """All that a store gives an auditor: with checkpoints of now and of an earlier time."""
        return {
            "old": self.checkpoint(before).encode(),
            "new": self.checkpoint().encode(),
            "export": self.export(),
            "consistency": self.consistency(before, len(self.entries)),
            "erasure": self.erasure(),
            "disposal": self.disposal(),
            "hold": self.hold(),
            "ledger": self.ledger(),
        }
