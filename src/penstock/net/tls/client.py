"""TLS of clients: which servers are trusted, and which certificate the client shows."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Final

from penstock.model.errors import InternalError, InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.net.tls.certificates import CIPHERS

log = logging.getLogger(__name__)

RELOAD_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """Files of a client's TLS, in PEM. The name of the host is always verified.

    ``ca``: the authorities that are trusted, a file or a directory of files; None: those of the system. ``certificate``
    and ``key``: what the client shows to servers that ask for a certificate (mutual TLS).
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError: a key without a certificate."""
        if self.certificate is None and self.key is not None:
            raise InvalidArgumentError("a client's key needs its certificate", key=str(self.key))

    def context(self) -> ssl.SSLContext:
        """A context for connections. Raises InvalidArgumentError, which names the file that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        context.hostname_checks_common_name = False
        try:
            if self.ca is None:
                context.load_default_certs(ssl.Purpose.SERVER_AUTH)
            else:
                context.load_verify_locations(cadata=self.authorities().decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise InvalidArgumentError(
                "the file holds no certificates of authorities in PEM", path=str(self.ca)
            ) from error
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
            except (OSError, ValueError) as error:
                raise InvalidArgumentError(
                    "the client's certificate or key cannot be used; both must be in PEM, belong together and have no"
                    " password",
                    path=str(self.certificate),
                    key=str(self.key),
                    reason=str(error)[:120],
                ) from error
        return context

    def authorities(self) -> bytes:
        """The certificates of the trusted authorities; of the system if no file is named. Raises
        InvalidArgumentError."""
        if self.ca is None:
            context = ssl.create_default_context()
            return "".join(map(ssl.DER_cert_to_PEM_cert, context.get_ca_certs(binary_form=True))).encode()
        try:
            files = [one for one in sorted(self.ca.iterdir()) if one.is_file()] if self.ca.is_dir() else [self.ca]
            return b"\n".join(path.read_bytes() for path in files)
        except OSError as error:
            raise InvalidArgumentError(
                "the file of trusted authorities cannot be read", path=str(self.ca), reason=str(error.strerror)
            ) from error

    def own(self) -> tuple[bytes, bytes] | None:
        """The client's certificate with its issuers, and its key; None if it has none. Raises InvalidArgumentError."""
        if self.certificate is None:
            return None
        try:
            return self.certificate.read_bytes(), (self.key or self.certificate).read_bytes()
        except OSError as error:
            raise InvalidArgumentError(
                "the client's certificate cannot be read", path=str(self.certificate), reason=str(error.strerror)
            ) from error


class FreshTls:
    """A context for many connections, from files that may be renewed.

    The files are read again at most every ``RELOAD_S``: with all authorities of a system this takes 45 ms, in which the
    event loop stands, and a controller dials up to 64 containers at the same time. Files that cannot be used change nothing,
    as with servers: one may just be renewed. ``now``: seconds on a clock that never goes back.
    """

    def __init__(self, tls: ClientTls, now: Callable[[], float]) -> None:
        """Reads nothing yet."""
        self._tls = tls
        self._now = now
        self._read_at_s: float | None = None
        self._context: ssl.SSLContext | None = None
        self._failure: InvalidArgumentError | None = None

    def context(self) -> ssl.SSLContext:
        """For a connection that is opened now. Raises InvalidArgumentError: the files could never be used."""
        now_s = self._now()
        if self._read_at_s is None or now_s - self._read_at_s >= RELOAD_S:
            self._read_at_s = now_s
            try:
                self._context, self._failure = self._tls.context(), None
            except InvalidArgumentError as error:
                if self._context is not None and str(error) != str(self._failure):
                    log.error("TLS files were not reloaded; the old ones stay in use", extra={"reason": str(error)})
                self._failure = error
        if self._context is not None:
            return self._context
        raise copy(self._failure) if self._failure is not None else InternalError("TLS has neither context nor failure")


def _no_password() -> str:
    # Without this, OpenSSL would ask on the terminal.
    raise ValueError("the private key is encrypted")
