"""Reads the files of a server's TLS, and refuses those with which no client could connect.

Every refusal is a sentence that names the file and what to do. OpenSSL's own texts name neither.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.net.tls.settings import TlsSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

_FILE_MAX_BYTES = 4 << 20
_READ_TRIES = 3  # times that files are read which change meanwhile
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and authenticated encryption only. TLS 1.3 has no others."""

Alpn = tuple[str, ...]
GRPC_ALPN: Alpn = ("h2",)
HTTP_ALPN: Alpn = ("http/1.1",)
NO_ALPN: Alpn = ()
_ALPNS = (GRPC_ALPN, HTTP_ALPN, NO_ALPN)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTls:
    """One accepted state of the files. ``contexts``: by the protocols that a port speaks. Times in milliseconds since the
    Unix epoch; ``not_after_ms`` is that of the certificate in the chain that expires first."""

    contexts: Mapping[Alpn, ssl.SSLContext]
    subject: str
    not_before_ms: int
    not_after_ms: int
    contents: Sequence[bytes]


def load_tls(settings: TlsSettings, *, now_ms: int) -> LoadedTls:
    """Read and check the files. Raises InvalidArgumentError, which names the file and what to do."""
    for _ in range(_READ_TRIES):
        contents = read_files(settings)
        chain = _checked_chain(settings.certificate, contents[0], now_ms)
        _check_key(settings, contents[1], chain)
        if settings.client_ca is not None:
            _check_authorities(settings.client_ca, contents[2], now_ms)
        contexts = {alpn: _context(settings, alpn) for alpn in _ALPNS}
        # OpenSSL read the files once more. What it read must be what was checked.
        if read_files(settings) == contents:
            return LoadedTls(
                contexts=contexts,
                subject=chain[0].subject.rfc4514_string()[:200],
                not_before_ms=max(_ms(one.not_valid_before_utc) for one in chain),
                not_after_ms=min(_ms(one.not_valid_after_utc) for one in chain),
                contents=contents,
            )
    raise InvalidArgumentError(
        "the TLS files change while they are read; replace each one in one step, by a rename",
        path=str(settings.certificate),
    )


def read_files(settings: TlsSettings) -> Sequence[bytes]:
    """The contents of the files, in the order of ``TlsSettings.files``. Raises InvalidArgumentError."""
    return [_read(path) for path in settings.files]


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_FILE_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidArgumentError(
            "a TLS file cannot be read; check its path, and that this user may read it",
            path=str(path),
            reason=error.strerror or type(error).__name__,
        ) from error
    if len(content) > _FILE_MAX_BYTES:
        raise InvalidArgumentError("a TLS file is too large", path=str(path), limit_bytes=_FILE_MAX_BYTES)
    return content


def _certificates(path: Path, content: bytes) -> list[Certificate]:
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise InvalidArgumentError(
            "the file holds no certificates in PEM; it must begin with -----BEGIN CERTIFICATE-----",
            path=str(path),
            reason=str(error)[:120],
        ) from error
    if not found:
        raise InvalidArgumentError("the file holds no certificate in PEM", path=str(path))
    return found


def _checked_chain(path: Path, content: bytes, now_ms: int) -> Sequence[Certificate]:
    chain = _certificates(path, content)
    for certificate, issuer in pairwise(chain):
        if not _issued(certificate, issuer):
            raise InvalidArgumentError(
                "the certificates are in the wrong order: the server's own comes first, and each one is followed by its"
                " issuer",
                path=str(path),
                certificate=certificate.subject.rfc4514_string(),
                followed_by=issuer.subject.rfc4514_string(),
            )
    for certificate in chain:
        _check_dates(path, certificate, now_ms)
    _check_purpose(path, chain[0])
    return chain


def _issued(certificate: Certificate, issuer: Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _check_dates(path: Path, certificate: Certificate, now_ms: int) -> None:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    subject = certificate.subject.rfc4514_string()
    if now > certificate.not_valid_after_utc:
        raise InvalidArgumentError(
            "a certificate has expired; renew it",
            path=str(path),
            certificate=subject,
            expired_at=certificate.not_valid_after_utc.isoformat(),
        )
    if now < certificate.not_valid_before_utc:
        raise InvalidArgumentError(
            "a certificate is not valid yet; wait, or check this machine's clock",
            path=str(path),
            certificate=subject,
            valid_from=certificate.not_valid_before_utc.isoformat(),
            clock=now.isoformat(),
        )


def _check_purpose(path: Path, certificate: Certificate) -> None:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        extensions = certificate.extensions
    except ValueError as error:
        raise InvalidArgumentError(
            "a certificate is malformed; issue it again", path=str(path), reason=str(error)[:120]
        ) from error
    try:
        extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound as error:
        raise InvalidArgumentError(
            "the server's certificate names no host; issue it with a subject alternative name", path=str(path)
        ) from error
    try:
        usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(usage):
        raise InvalidArgumentError(
            "the certificate is not one for servers; issue it with the extended key usage serverAuth", path=str(path)
        )


def _check_key(settings: TlsSettings, content: bytes, chain: Sequence[Certificate]) -> None:
    path = settings.key
    mode = path.stat().st_mode
    if mode & 0o007:
        raise InvalidArgumentError(
            f"other users may read the private key; run: chmod 600 {path}", path=str(path), mode=oct(mode & 0o777)
        )
    public = _public(_private_key(path, content))
    if public == _public_of(chain[0]):
        return
    if any(public == _public_of(one) for one in chain[1:]):
        raise InvalidArgumentError(
            "the certificates are in the wrong order: the one of the private key comes first",
            path=str(settings.certificate),
        )
    raise InvalidArgumentError(
        "the private key belongs to another certificate", path=str(path), certificate=str(settings.certificate)
    )


def _private_key(path: Path, content: bytes) -> PrivateKeyTypes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(content, password=None)
    except TypeError as error:
        raise InvalidArgumentError(
            f"the private key is encrypted with a password; decrypt it with: openssl pkey -in {path}", path=str(path)
        ) from error
    except (ValueError, UnsupportedAlgorithm):
        # Without the cause: a parser's text may quote the file.
        raise InvalidArgumentError("the file holds no private key in PEM", path=str(path)) from None


def _public(key: PrivateKeyTypes) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _public_of(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _check_authorities(path: Path, content: bytes, now_ms: int) -> None:
    found = _certificates(path, content)
    # A bundle may still hold the authority before the last.
    if all(_ms(one.not_valid_after_utc) < now_ms for one in found):
        raise InvalidArgumentError("all authorities of client certificates have expired; renew them", path=str(path))


def _context(settings: TlsSettings, alpn: Alpn) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_ciphers(CIPHERS)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
        if settings.client_ca is not None:
            context.load_verify_locations(settings.client_ca)
            required = settings.client_auth == "required"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidArgumentError(
            "OpenSSL refuses the certificate, for example because its key is too short (RSA needs 2048 bits)",
            path=str(settings.certificate),
            reason=str(error)[:200],
        ) from error
    return context


def _no_password() -> str:
    # Without this, OpenSSL would ask on the terminal.
    raise ValueError("the private key is encrypted")


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
