"""What holds of checkpoints, exported audit entries and signed documents, from files and public keys alone.

``scripts/verify.py`` is a second implementation without this package; tests hold both to the same verdicts.
Source: docs/formats/evidence.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from penstock.codec.notes import Checkpoint, VerifierKey, from_base64, parse_checkpoint
from penstock.core.cases.ledger import LEDGER, ledger_of
from penstock.core.evidence import documents as d
from penstock.core.evidence.merkle import Edge, leaf_hash, root_of_inclusion, roots_of_consistency
from penstock.core.evidence.signers import check_signed, handed_over, has_signer, is_signed
from penstock.core.segments.erasure_receipt import canonical, receipt_problems
from penstock.core.units import counted, format_size
from penstock.model.errors import CorruptDataError, InvalidArgumentError, PenstockError
from penstock.model.values.dataclass import dataclass

_UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    CorruptDataError,
    InvalidArgumentError,
)
"""What parsing a file of anyone's raises."""

Place = tuple[str, int]
"""The origin and the size of a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result, for people. ``holds``: None where the files cannot show it."""

    file: str
    holds: bool | None
    text: str


@dataclass(slots=True, kw_only=True)
class Report:
    """What was found in all files, in order."""

    findings: list[Finding] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong, and something was verified."""
        verdicts = [finding.holds for finding in self.findings]
        return False not in verdicts and True in verdicts

    def add(self, file: str, holds: bool | None, text: str) -> None:
        self.findings.append(Finding(file=file, holds=holds, text=text))


def verify(files: Mapping[str, bytes], keys: Sequence[str], *, known: Mapping[str, bytes] | None = None) -> Report:
    """Verify the files against public keys in the form of ``penstock audit key``.

    ``known``: checkpoints that the caller has kept. Everything must be proved to continue them, and the newest of the
    other checkpoints must not be older. Raises InvalidArgumentError: a key is malformed.
    """
    return _Verifier([VerifierKey.parse(key) for key in keys]).run(files, known or {})


@dataclass(frozen=True, slots=True)
class _Export:
    file: str
    head: Mapping[str, Any]
    entries: Sequence[bytes]
    checkpoint: Checkpoint


class _Verifier:
    def __init__(self, keys: Sequence[VerifierKey]) -> None:
        self.report = Report()
        self.trusted = {key.text: key for key in keys}
        self.roots: dict[Place, bytes] = {}
        self.links: list[set[Place]] = []
        self.exports: list[_Export] = []
        self.strict: set[Place] = set()
        """Checkpoints that the caller named as files: each must be linked to the others."""
        self.newest: dict[str, int] = {}
        """The newest size of each log that a checkpoint or an export states for now."""

    def run(self, files: Mapping[str, bytes], known: Mapping[str, bytes]) -> Report:
        contents = {name: data.decode("utf-8", "surrogateescape") for name, data in files.items()}
        heads = {}
        for name, text in contents.items():
            try:
                heads[name] = _head(text)
            except _UNREADABLE as error:
                self.report.add(name, False, f"it cannot be read: {str(error)[:120]}")
        self._trust([head for head in heads.values() if head is not None])
        kept: dict[str, int] = {}
        for name, data in known.items():
            found = self._note(name, data.decode("utf-8", "surrogateescape"))
            if found is not None:
                self.strict.add((found.origin, found.size))
                kept[found.origin] = max(found.size, kept.get(found.origin, 0))
        for name, head in heads.items():
            try:
                self._file(name, contents[name], head)
            except _UNREADABLE as error:
                self.report.add(name, False, f"it cannot be read: {str(error)[:120]}")
        for export in self.exports:
            self._export(export)
        self._linked()
        for origin, size in kept.items():
            # Files that are all of other logs show nothing about this one.
            newest = self.newest.get(origin, 0 if self.newest else size)
            if newest < size:
                self.report.add(
                    "--known", False, f"a checkpoint with {size} entries is known; the files end at {newest}"
                )
        return self.report

    # --- keys -----------------------------------------------------------------------------------------------------

    def _trust(self, heads: Sequence[Mapping[str, Any]]) -> None:
        self.trusted = handed_over(self.trusted, [item for head in heads for item in head["rotations"]])

    def _note(self, file: str, note: str) -> Checkpoint | None:
        """The checkpoint, if a trusted key of its log has signed it."""
        try:
            found = parse_checkpoint(note)
            message = found.text.encode()
        except _UNREADABLE as error:
            self.report.add(file, False, f"its checkpoint cannot be read: {str(error)[:120]}")
            return None
        if not has_signer(self.trusted, found.origin, found.signatures, message):
            self.report.add(file, False, "its checkpoint is not signed by a key that you trust")
            return None
        place = (found.origin, found.size)
        if self.roots.setdefault(place, found.root) != found.root:
            self.report.add(file, False, f"FORK: two different logs of {found.size} entries are signed")
            return None
        return found

    # --- files ----------------------------------------------------------------------------------------------------

    def _file(self, name: str, text: str, head: Mapping[str, Any] | None) -> None:
        if head is None:
            found = self._note(name, text)
            if found is not None:
                self.strict.add((found.origin, found.size))
                self._states(found)
                self.report.add(name, True, f"checkpoint of {found.origin} with {found.size} entries: signed")
            return
        kind, version = head["penstock"], head["format"]
        if version != d.FORMAT:
            self.report.add(name, False, f"its format {str(version)[:20]} is not known to this version")
        elif kind == d.EXPORT:
            self._begin_export(name, head, text)
        elif kind == LEDGER:
            self._ledger(name, text)
        elif text.count("\n") > 1 or not text.endswith("\n"):
            self.report.add(name, False, "a document is one line")
        elif kind == d.EVIDENCE:
            self._evidence(name, head)
        elif kind == d.CONSISTENCY:
            self._consistency(name, head)
        elif kind == d.HISTORY:
            used = sum(rotation["new"] in self.trusted for rotation in head["rotations"])
            holds = used == len(head["rotations"])
            self.report.add(
                name, holds, f"{used} of {len(head['rotations'])} key rotations are signed by a trusted key"
            )
        else:
            self.report.add(name, False, f"this kind of document is not known: {str(kind)[:40]}")

    def _ledger(self, name: str, text: str) -> None:
        try:
            found = ledger_of(text.encode("utf-8", "surrogateescape").splitlines())
            origin = check_signed(found, self.trusted)
        except PenstockError as error:
            self.report.add(name, False, error.message)
        else:
            things = f"{counted(len(found.erasures), 'erasure')} and {counted(len(found.cases), 'case')}"
            self.report.add(name, text.endswith("\n"), f"ledger of {origin} with {things}: signed")

    def _states(self, found: Checkpoint) -> None:
        self.newest[found.origin] = max(found.size, self.newest.get(found.origin, 0))

    def _begin_export(self, name: str, head: Mapping[str, Any], text: str) -> None:
        lines = text.split("\n")
        if lines[-1]:
            self.report.add(name, False, "its last line is cut off")
            return
        found = self._note(name, head["checkpoint"])
        if found is not None:
            self._states(found)
            entries = [line.encode("utf-8", "surrogateescape") for line in lines[1:-1]]
            self.exports.append(_Export(name, head, entries, found))

    def _export(self, export: _Export) -> None:
        try:
            problem = self._export_problem(export)
        except _UNREADABLE as error:
            problem = f"an entry cannot be read: {str(error)[:120]}"
        size, start = export.checkpoint.size, export.head["start"]
        self.report.add(
            export.file,
            problem is None,
            problem or f"entries {start} to {size - 1} are complete, in order and unchanged",
        )

    def _export_problem(self, export: _Export) -> str | None:
        """Why the entries are not those of the checkpoint. Links all checkpoints that the entries pass."""
        found, start = export.checkpoint, export.head["start"]
        edge = Edge(start, tuple(from_base64(item) for item in export.head["edge"]))
        passed: set[Place] = set()
        previous: str | None = None
        for at in range(len(export.entries) + 1):
            root = self.roots.get((found.origin, edge.size))
            if root is not None:
                if root != edge.root():
                    return f"entries up to {edge.size} are not those of the checkpoint with {edge.size} entries"
                passed.add((found.origin, edge.size))
            if at == len(export.entries):
                break
            entry = export.entries[at]
            fields = d.parsed(entry.decode())
            if fields["n"] != edge.size:
                return f"entry {edge.size} is missing, repeated or out of order"
            if at and fields["previous"] != previous:
                return f"entry {edge.size} does not continue the one before"
            if not edge.size and fields["log"]["origin"] != found.origin:
                return "the first entry is of another log"
            leaf = leaf_hash(entry)
            edge, previous = edge.add([leaf]), leaf.hex()
        if edge.size != found.size:
            return f"it has entries up to {edge.size}, its checkpoint has {found.size}"
        self.links.append(passed)
        return None

    def _consistency(self, name: str, document: Mapping[str, Any]) -> None:
        old, new = (self._note(name, note) for note in document["checkpoints"])
        if old is None or new is None:
            return
        proof = [from_base64(item) for item in document["proof"]]
        roots = roots_of_consistency(old.size, new.size, old.root, proof) if old.origin == new.origin else None
        holds = roots == (old.root, new.root)
        if holds:
            self.links.append({(old.origin, old.size), (new.origin, new.size)})
            self._states(new)
        words = "continues" if holds else "is not shown to continue"
        self.report.add(name, holds, f"the log of {new.size} entries {words} that of {old.size} entries")

    # --- evidence -------------------------------------------------------------------------------------------------

    def _evidence(self, name: str, document: Mapping[str, Any]) -> None:
        found = self._note(name, document["checkpoint"])
        if found is None:
            return
        self._states(found)
        signature = document["signature"]
        key = self.trusted.get(signature["key"])
        message = d.signed_bytes(document)
        if key is None or key.name != found.origin or not is_signed(key.public, signature["value"], message):
            self.report.add(name, False, "the document was changed, or is not signed by a key that you trust")
            return
        entries: list[d.Entry] = []
        before = -1
        for item in document["entries"]:
            fields = d.parsed(item["entry"])
            proof = [from_base64(value) for value in item["proof"]]
            leaf = leaf_hash(item["entry"].encode())
            if fields["n"] <= before or root_of_inclusion(leaf, fields["n"], found.size, proof) != found.root:
                self.report.add(name, False, f"entry {fields['n']} is not in the log of its checkpoint")
                return
            before = fields["n"]
            entries.append(fields)
        problems = _problems(document, entries)
        for problem in problems:
            self.report.add(name, False, problem)
        if not problems:
            self.report.add(name, True, described(document, entries))

    # --- links ----------------------------------------------------------------------------------------------------

    def _linked(self) -> None:
        """Checkpoints of one log must continue each other. Those inside documents need that only beside others."""
        for origin in dict.fromkeys(origin for origin, _ in self.roots):
            places = {place for place in self.roots if place[0] == origin}
            group = {max(places & self.strict or places)}
            grown = True
            while grown:
                more = [link for link in self.links if link & group and not link <= group]
                group = group.union(*more)
                grown = bool(more)
            sizes = ", ".join(str(size) for _, size in sorted(places - group))
            if sizes:
                holds = False if places & self.strict else None
                text = f"nothing proves that the checkpoints with {sizes} entries belong to the log of {max(group)[1]}"
                self.report.add("all files", holds, text)


def _head(text: str) -> Mapping[str, Any] | None:
    """The first line of a document; None: a checkpoint. Raises one of ``_UNREADABLE``: not as a store writes it."""
    if not text.startswith("{"):
        return None
    line = text.split("\n", 1)[0]
    head: Mapping[str, Any] = json.loads(line)
    if canonical(head).decode() != line:
        raise ValueError("it is not written as a store writes it")
    if not all(isinstance(item[part], str) for item in head["rotations"] for part in ("old", "new", "signature")):
        raise ValueError("its key rotations are not text")
    return head


def _problems(document: Mapping[str, Any], entries: Sequence[d.Entry]) -> list[str]:
    """Why the statement does not follow from the entries."""
    statement = document["statement"]
    if document["kind"] == d.ERASURE:
        receipt = statement["receipt"]
        if set(statement) != {"receipt"}:
            return ["it states more than its receipt"]
        return [*receipt_problems(receipt), *d.erasure_problems(receipt, entries)]
    if document["kind"] == d.DISPOSAL:
        about = {name: statement[name] for name in ("target", "from_ms", "to_ms")}
        if not all(d.is_removal(entry, **about) for entry in entries):
            return ["it lists an entry that is no removal from the target in that time"]
        return [] if d.disposal_statement(entries, **about) == statement else ["its sums are not those of its entries"]
    if document["kind"] == d.HOLD:
        one = bool(entries) and all(
            entry["kind"] in d.HOLDS and entry.get("hold") == statement["hold"] for entry in entries
        )
        return [] if one and d.hold_statement(entries) == statement else ["its state is not that of its entries"]
    return [f"this kind of evidence is not known: {str(document['kind'])[:40]}"]


def described(document: Mapping[str, Any], entries: Sequence[d.Entry]) -> str:
    """What the document proves, in words."""
    statement, numbers = document["statement"], ", ".join(str(entry["n"]) for entry in entries[:10])
    more = " ..." if len(entries) > 10 else ""
    noun = "entry" if len(entries) == 1 else "entries"
    where = f"{noun} {numbers}{more} of the log" if entries else "no entry of the log"
    if document["kind"] == d.ERASURE:
        receipt = statement["receipt"]
        what = receipt["where"]
        return (
            f"erasure {receipt['erasure']}: {counted(what['events'], 'event')} of {receipt['stream']} erased ({where})"
        )
    if document["kind"] == d.DISPOSAL:
        removed = f"{counted(statement['removals'], 'removal')}, {format_size(statement['bytes'])}"
        return f"{removed}, of {statement['target']} ({where})"
    return f"hold {statement['hold']} on {statement['target']} is {statement['state']} ({where})"
