"""Verify what a Penstock store states about its audit log, without the store and without Penstock.

    python verify.py FILE... --public-key PUBLIC_KEY [--known CHECKPOINT]

Files: checkpoints, exports of the audit log, proofs that one checkpoint continues another, ledgers of erasures, and
signed documents. The public key is what `penstock audit key` printed. Get it from someone you trust, not with the
files. `--known`: a checkpoint that you have kept. Everything must continue it.
Needs Python 3.11 and the package `cryptography`. Exit status: 0 all holds; 9 something does not hold; 2 wrong usage.
The formats: docs/formats/evidence.md. Standards: RFC 6962 (Merkle tree), C2SP signed-note and tlog-checkpoint.
"""

import argparse
import hashlib
import json
import re
from base64 import b64decode, b64encode
from functools import reduce
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

BAD_FILE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
KINDS = ("audit-export", "evidence", "consistency", "audit-keys", "erasure-ledger")
REMOVALS = ("truncate", "expire", "evict", "delete", "release", "erase")


def need(condition, text):
    if not condition:
        raise ValueError(text)


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def add_leaf(size, edge, leaf):
    edge = list(edge)  # roots of the complete subtrees, the largest first
    while size & 1:
        leaf, size = sha256(b"\x01", edge.pop(), leaf), size >> 1
    return [*edge, leaf]


def included(leaf, number, size, proof):
    """The root that an inclusion proof leads to. It uses the proof up, from its end."""
    if size == 1:
        return leaf
    left, sibling = 1 << ((size - 1).bit_length() - 1), proof.pop()
    if number < left:
        return sha256(b"\x01", included(leaf, number, left, proof), sibling)
    return sha256(b"\x01", sibling, included(leaf, number - left, size - left, proof))


def continued(before, size, proof, old_root=None):
    """The roots of the old and the new tree that a consistency proof leads to. It uses the proof up, from its end."""
    if before == size:
        part = proof.pop() if old_root is None else old_root
        return part, part
    left, sibling = 1 << ((size - 1).bit_length() - 1), proof.pop()
    if before <= left:
        old, new = continued(before, left, proof, old_root)
        return old, sha256(b"\x01", new, sibling)
    old, new = continued(before - left, size - left, proof)
    return sha256(b"\x01", sibling, old), sha256(b"\x01", sibling, new)


def parse_key(text):
    """Name, id and raw key of NAME+ID+BASE64. The id is the beginning of a digest over name and key."""
    name, identifier, data = [*text.strip().split("+", 2), "", ""][:3]
    raw = unbase64(data)
    need(re.fullmatch(r"[^\s+]{1,255}", name) and raw[:1] == b"\x01" and len(raw) == 33, "not a public key")
    need(sha256(name.encode(), b"\n", raw)[:4].hex() == identifier, "the public key was changed")
    return name, bytes.fromhex(identifier), raw[1:]


def is_signed(public, signature, message):
    try:
        raw = unbase64(signature) if isinstance(signature, str) else signature
        Ed25519PublicKey.from_public_bytes(public).verify(raw, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def unbase64(text):
    raw = b64decode(text, validate=True)
    need(b64encode(raw).decode() == text, "no base64")
    return raw


class Verifier:
    """Results are (file, verdict, words); the verdict is None where the files cannot show it."""

    def __init__(self, keys):
        self.found, self.heads, self.rotations, self.trusted = [], {}, [], {key.strip(): parse_key(key) for key in keys}
        self.roots, self.links, self.exports, self.stated, self.strict, self.kept = {}, [], [], [], set(), set()

    def run(self, files, known):
        texts = {name: data.decode("utf-8", "surrogateescape") for name, data in files.items()}
        for name, text in texts.items():
            self.guarded(name, self.read, name, text)
        for old, new, signature in self.rotations * len(self.rotations):
            message = f"penstock-key-rotation 1\n{old}\n{new}\n".encode()
            name, _, public = self.trusted.get(old, ("", b"", b""))
            if name and new.startswith(f"{name}+") and is_signed(public, signature, message):
                self.trusted[new] = parse_key(new)
        for name, data in known.items():
            self.guarded(name, lambda text: self.kept.add(self.note(text)), data.decode("utf-8", "surrogateescape"))
        self.strict |= self.kept
        for name, head in self.heads.items():
            self.guarded(name, self.file, name, texts[name], head)
        for name, head, entries, place in self.exports:
            self.guarded(name, self.export, name, head, entries, place)
        self.linked()
        for origin, size in self.kept:
            if max((end for name, end in self.stated if name == origin), default=0 if self.stated else size) < size:
                self.found.append(("--known", False, "the files end before the checkpoint that is known"))
        return self.found

    def guarded(self, name, step, *arguments):
        try:
            step(*arguments)
        except BAD_FILE as error:
            self.found.append((name, False, str(error)[:120]))

    def read(self, name, text):
        """The first line of a document; None: a checkpoint, which has another form."""
        line = text.split("\n", 1)[0]
        head = json.loads(line) if text.startswith("{") else None
        need(head is None or canonical(head).decode() == line, "it is not written as a store writes it")
        for item in head["rotations"] if head else []:
            self.rotations.append((item["old"] + "", item["new"] + "", item["signature"] + ""))
        self.heads[name] = head

    def note(self, text):
        """Origin, size and root of a checkpoint that a trusted key of its log has signed."""
        body, _, below = text.rpartition("\n\n")
        lines = body.split("\n")
        need(len(lines) >= 3 and lines[0] and re.fullmatch("0|[1-9][0-9]{0,18}", lines[1]), "no checkpoint")
        root = unbase64(lines[2])
        need(len(root) == 32, "the root of the checkpoint is no hash")
        self.signed(lines[0], body, below)
        origin, size = lines[0], int(lines[1])
        need(self.roots.setdefault((origin, size), root) == root, "FORK: two logs of this size are signed")
        return origin, size

    def signed(self, origin, body, below):
        found = [re.fullmatch("\u2014 ([^\\s+]{1,255}) (.+)", line) for line in below[:-1].split("\n")]
        need(below.endswith("\n") and all(found), "no signature")
        notes, message = [(item[1], unbase64(item[2])) for item in found], f"{body}\n".encode()
        need(all(len(raw) > 4 for _, raw in notes), "no signature")
        own = [(raw, key) for name, raw in notes for key in self.trusted.values() if name == origin]
        right = any(key[:2] == (origin, raw[:4]) and is_signed(key[2], raw[4:], message) for raw, key in own)
        need(right, "it is not signed by a key that you trust")

    def ledger(self, name, text):
        """The note in the last line signs the number and the digest of all lines before it."""
        start, _, last = text[:-1].rpartition("\n")
        lines, digest = start.count("\n") + 1, sha256(f"{start}\n".encode("utf-8", "surrogateescape"))
        end = {"kind": "end", "lines": lines, "note": json.loads(last)["note"], "sha256": digest.hex()}
        body, _, below = end["note"].rpartition("\n\n")
        origin = body.split("\n")[1]
        said = f"penstock-erasure-ledger 1\n{origin}\n{lines}\n{b64encode(digest).decode()}"
        need(f"{start}\n{canonical(end).decode()}\n" == text and body == said, "the ledger was changed or cut off")
        self.signed(origin, body, below)
        self.found.append((name, True, f"ledger of erasures of {origin} with {lines - 1} erasures and cases: signed"))

    def file(self, name, text, head):
        if head is None:
            self.stated.append(place := self.note(text))
            self.strict.add(place)
            return self.found.append((name, True, f"checkpoint of {place[0]} with {place[1]} entries: signed"))
        kind = head["penstock"]
        need(head["format"] == 1 and kind in KINDS, "its kind or format is not known")
        if kind == "erasure-ledger":
            return self.ledger(name, text)
        if kind == "audit-export":
            need(text.endswith("\n"), "its last line is cut off")
            self.stated.append(place := self.note(head["checkpoint"]))
            return self.exports.append((name, head, text.split("\n")[1:-1], place))
        need(text.count("\n") == 1 and text.endswith("\n"), "a document is one line")
        if kind == "audit-keys":
            need(all(item["new"] in self.trusted for item in head["rotations"]), "a key rotation is not signed")
            return self.found.append((name, True, f"{len(head['rotations'])} key rotations are signed"))
        return self.evidence(name, head) if kind == "evidence" else self.consistency(name, head)

    def export(self, name, head, lines, place):
        """All entries from the start to the checkpoint, one a line, lead to its root."""
        (origin, end), size, edge = place, head["start"], list(map(unbase64, head["edge"]))
        need(size >= 0 and len(edge) == size.bit_count(), "its start does not fit")
        passed, previous = set(), None
        for at, line in enumerate([*lines, None]):
            if (origin, size) in self.roots:
                root = reduce(lambda right, left: sha256(b"\x01", left, right), edge[::-1] or [sha256()])
                need(self.roots[origin, size] == root, f"entries up to {size} are not those of a checkpoint")
                passed.add((origin, size))
            if line is None:
                break
            fields = json.loads(entry := line.encode())
            need(fields["n"] == size, f"entry {size} is missing, repeated or out of order")
            need(not at or fields["previous"] == previous, f"entry {size} does not continue the one before")
            need(size or fields["log"]["origin"] == origin, "the first entry is of another log")
            leaf = sha256(b"\x00", entry)
            edge, size, previous = add_leaf(size, edge, leaf), size + 1, leaf.hex()
        need(size == end, f"it has entries up to {size}, its checkpoint has {end}")
        self.links.append(passed)
        self.found.append((name, True, f"entries {head['start']} to {end - 1} are complete, in order and unchanged"))

    def consistency(self, name, document):
        old, new = (self.note(note) for note in document["checkpoints"])
        proof, right = list(map(unbase64, document["proof"])), old[0] == new[0] and 0 < old[1] <= new[1]
        right = right and continued(old[1], new[1], proof, self.roots[old]) == (self.roots[old], self.roots[new])
        need(right and not proof, f"{new[1]} entries are not shown to continue the log of {old[1]} entries")
        self.links.append({old, new})
        self.stated.append(new)
        self.found.append((name, True, f"the log of {new[1]} entries continues that of {old[1]} entries"))

    def evidence(self, name, document):
        self.stated.append(place := self.note(document["checkpoint"]))
        key = self.trusted.get((signature := document["signature"])["key"])
        body = canonical({field: value for field, value in document.items() if field != "signature"})
        right = key and key[0] == place[0] and is_signed(key[2], signature["value"], b"penstock-evidence 1\n" + body)
        need(right, "the document was changed, or is not signed by a key that you trust")
        entries, before = [], -1
        for item in document["entries"]:
            fields, proof = json.loads(item["entry"]), list(map(unbase64, item["proof"]))
            need(before < fields["n"] < place[1], "an entry is repeated or behind the end of the log")
            before, root = fields["n"], included(sha256(b"\x00", item["entry"].encode()), fields["n"], place[1], proof)
            need(root == self.roots[place] and not proof, f"entry {before} is not in the log")
            entries.append(fields)
        said = document["statement"]
        need(document["kind"] in ("erasure", "disposal", "hold"), "this kind of evidence is not known")
        need(follows(document["kind"], said, entries), "what it states does not follow from its entries")
        about = said["receipt"]["erasure"] if "receipt" in said else said.get("hold") or said["target"]
        self.found.append((name, True, f"{document['kind']} {about}: {len(entries)} entries of the log prove it"))

    def linked(self):
        # Checkpoints of one log must continue each other. Those inside documents need that only beside others.
        for origin in dict.fromkeys(origin for origin, _ in self.roots):
            places = {place for place in self.roots if place[0] == origin}
            group, grown = {max(places & self.strict or places)}, True
            while grown:
                more = [link for link in self.links if link & group and not link <= group]
                group, grown = group.union(*more), bool(more)
            if places - group:
                sizes = ", ".join(str(size) for _, size in sorted(places - group))
                self.found.append(("all files", False if places & self.strict else None, f"nothing links {sizes}"))


def follows(kind, said, entries):
    """Whether the statement of a document follows from its entries of the log."""
    if kind == "erasure":
        receipt = said["receipt"]
        body = canonical({field: value for field, value in receipt.items() if field != "sha256"})
        whole = sha256(body).hex() == receipt.get("sha256") and len(entries) == len(said) == 1
        same = all(entries[0].get(name) == receipt.get(name) for name in ("erasure", "sha256", "sequence", "identity"))
        return whole and same and entries[0].get("kind") == "erase"
    if kind == "disposal":
        target, start, end = said["target"], said["from_ms"], said["to_ms"]
        for entry in entries:
            about, at_ms = f"{entry.get('target')}/", int(entry.get("at_ms") or 0)
            right = about == f"{target}/" if "/" in target else about.startswith(f"{target}/")
            if not (right and entry.get("kind") in REMOVALS and start <= at_ms < end):
                return False
        gone = [entry for entry in entries if entry.get("kind") in ("truncate", "erase")]
        events = [entry.get("events") for entry in gone]
        count = None if None in events else sum(int(number or 0) for number in events)
        sums = {"removals": len(entries), "bytes": sum(int(entry.get("bytes") or 0) for entry in gone), "events": count}
        return said == {"target": target, "from_ms": start, "to_ms": end, **sums}
    last, before = entries[-1], [entry["kind"] for entry in entries[:-1]]
    if any(entry["kind"] not in ("hold", "unhold") or entry.get("hold") != said["hold"] for entry in entries):
        return False
    state = "lifted" if last["kind"] == "unhold" else "extended" if before[-1:] == ["hold"] else "placed"
    return said == {"state": state, **{name: last.get(name) for name in ("hold", "target", "owner", "until_ms")}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--public-key", dest="key", action="append", required=True, help="the key, or a file with it")
    parser.add_argument("--known", action="append", default=[], help="a checkpoint that you kept")
    given = parser.parse_args()
    files, known = ({name: Path(name).read_bytes() for name in names} for names in (given.files, given.known))
    try:
        verifier = Verifier([key if "+" in key else Path(key).read_text() for key in given.key])
    except (OSError, ValueError) as error:
        parser.error(f"--public-key: {error}; give what `penstock audit key` prints, or a file with it")
    for name, verdict, text in verifier.run(files, known):
        print(f"{ {True: 'holds', False: 'DOES NOT HOLD', None: 'not shown'}[verdict] }: {name}: {text}")
    verdicts = [verdict for _, verdict, _ in verifier.found]
    return 9 if False in verdicts or True not in verdicts else 0


if __name__ == "__main__":
    raise SystemExit(main())
