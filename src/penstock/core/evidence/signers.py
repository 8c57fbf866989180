"""Which keys are trusted, and whether one of them has signed a note. Source: docs/formats/evidence.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.codec.notes import Signature, VerifierKey, from_base64, parse_ledger_note
from penstock.core.cases.ledger import Ledger, signed_text
from penstock.core.evidence.documents import rotation_bytes
from penstock.model.errors import CorruptDataError, InvalidArgumentError


def trusted_keys(keys: Sequence[str]) -> dict[str, VerifierKey]:
    """The keys by their text. Raises InvalidArgumentError: one is malformed."""
    return {key.text: key for key in map(VerifierKey.parse, keys)}


def handed_over(trusted: Mapping[str, VerifierKey], rotations: Sequence[Mapping[str, str]]) -> dict[str, VerifierKey]:
    """The trusted keys, and those to which a trusted key has handed over."""
    found = dict(trusted)
    for _ in rotations:
        for item in rotations:
            old, new = item["old"], item["new"]
            if old in found and new not in found:
                key = _key(new)
                message = rotation_bytes(old, new)
                is_same = key is not None and key.name == found[old].name
                if key is not None and is_same and is_signed(found[old].public, item["signature"], message):
                    found[new] = key
    return found


def has_signer(
    trusted: Mapping[str, VerifierKey], origin: str, signatures: Sequence[Signature], message: bytes
) -> bool:
    """Whether a trusted key of the log ``origin`` has signed the message."""
    return any(
        key.name == one.name == origin and key.id == one.key and is_signed(key.public, one.value, message)
        for key in trusted.values()
        for one in signatures
    )


def check_signed(ledger: Ledger, trusted: Mapping[str, VerifierKey]) -> str:
    """The log whose key has signed the ledger. Raises CorruptDataError: no trusted key has signed it as it is."""
    if not ledger.note:
        raise CorruptDataError("ledger of erasures is not signed; export it again with this version")
    origin, text, signatures = parse_ledger_note(ledger.note)
    if text != signed_text(ledger, origin):
        raise CorruptDataError("ledger of erasures was changed after it was signed")
    if not has_signer(handed_over(trusted, ledger.rotations), origin, signatures, text.encode()):
        raise CorruptDataError(
            "ledger of erasures is of another store, or not signed by a key that you trust", log=origin
        )
    return origin


def is_signed(public: bytes, signature: bytes | str, message: bytes) -> bool:
    """Whether the Ed25519 signature, raw or in base64, is that of the key over the message."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        raw = from_base64(signature) if isinstance(signature, str) else signature
        Ed25519PublicKey.from_public_bytes(public).verify(raw, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _key(text: str) -> VerifierKey | None:
    try:
        return VerifierKey.parse(text)
    except InvalidArgumentError:
        return None
