"""Certificates for tests: an authority that signs what a test asks for, with dates around now."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.net.tls.settings import TlsSettings

HOSTS = ("localhost", "127.0.0.1", "::1")
DAY = timedelta(days=1)


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    if text.startswith("spiffe:"):
        return x509.UniformResourceIdentifier(text)
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


@dataclass(frozen=True)
class Files:
    """A certificate with its issuers, and its key."""

    certificate: Path
    key: Path

    def settings(self, **more: object) -> TlsSettings:
        return TlsSettings(certificate=self.certificate, key=self.key, **more)  # type: ignore[arg-type]

    def options(self) -> tuple[str, ...]:
        return ("--tls-cert", str(self.certificate), "--tls-key", str(self.key))


class Authority:
    """A root, or an intermediate under ``issuer``."""

    def __init__(self, name: str = "test authority", issuer: Authority | None = None) -> None:
        self.name = name
        self.issuer = issuer
        self.key = ec.generate_private_key(ec.SECP256R1())
        signer = issuer or self
        self.certificate = (
            self._builder(name, signer.name, self.key, datetime.now(UTC) - DAY, datetime.now(UTC) + 90 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    key_cert_sign=True,
                    crl_sign=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(signer.key, hashes.SHA256())
        )

    @staticmethod
    def _builder(
        name: str, issuer: str, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
        )

    @property
    def chain(self) -> list[x509.Certificate]:
        """Own certificate and issuers, without the root."""
        return [] if self.issuer is None else [self.certificate, *self.issuer.chain]

    def write(self, path: Path) -> Path:
        """The authority's certificate, for clients."""
        path.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        return path

    def issue(
        self,
        directory: Path,
        name: str = "server",
        *,
        hosts: Sequence[str] = HOSTS,
        begins: timedelta = -DAY,
        ends: timedelta = 60 * DAY,
        client: bool = False,
        reverse: bool = False,
        mode: int = 0o600,
    ) -> Files:
        """Files of a new certificate; dates are relative to now. ``reverse``: the chain in the wrong order."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        builder = self._builder(name, self.name, key, datetime.now(UTC) + begins, datetime.now(UTC) + ends)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), critical=False)
        leaf = (
            builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        chain = [leaf, *self.chain]
        if reverse:
            chain.reverse()
        directory.mkdir(parents=True, exist_ok=True)
        files = Files(certificate=directory / f"{name}.pem", key=directory / f"{name}.key")
        files.certificate.write_bytes(b"".join(one.public_bytes(Encoding.PEM) for one in chain))
        files.key.write_bytes(pem(key))
        files.key.chmod(mode)
        return files
