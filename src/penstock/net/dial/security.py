"""How a client protects its connections and says who it is."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from penstock.model.credentials import Credentials
from penstock.model.errors import InvalidArgumentError
from penstock.net.dial.addresses import host_of, is_local, parse_addresses, tls_of
from penstock.net.dial.presenting import Presenting
from penstock.net.tls.client import ClientTls, FreshTls
from penstock.ports.clock import Clock


class DialSecurity:
    """What all connections of one client share.

    ``tls``: None for plain connections. ``now``: seconds on a clock that never goes back, for a process that runs for long:
    new connections use renewed files (see ``FreshTls``). None: the files are read once.
    """

    def __init__(
        self,
        *,
        tls: ClientTls | None = None,
        presenting: Presenting | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._fresh = None if tls is None or now is None else FreshTls(tls, now)
        self.tls = tls
        self.presenting = presenting
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext | None:
        """The context of a TLS connection that is opened now; None for plain ones. Raises InvalidArgumentError (a file)."""
        if self._fresh is not None:
            return self._fresh.context()
        if self._context is None and self.tls is not None:
            self._context = self.tls.context()
        return self._context


PLAIN = DialSecurity()


def security_for(
    address: str,
    *,
    tls: ClientTls | None = None,
    default_tls: ClientTls | None = None,
    credentials: Credentials | None = None,
    clock: Clock,
    insecure: bool = False,
) -> DialSecurity:
    """The protection that an address asks for, or several separated by commas.

    With ``tls``, an address without a scheme means TLS. A plain address with it is a contradiction, and never downgrades.
    ``default_tls`` is used if TLS is, and does not ask for it.
    Raises InvalidArgumentError: that contradiction; credentials that would cross a network in the clear, unless
    ``insecure``; a bad address or file.
    """
    parse_addresses(address)
    singles = address.split(",")
    wanted = tls_of(singles[0])
    if tls is not None and wanted is False:
        raise InvalidArgumentError("options of TLS were given for a plain address; write tls://", address=address)
    uses_tls = bool(wanted) or tls is not None
    if credentials is not None and not uses_tls and not insecure and not all(map(is_local, map(host_of, singles))):
        raise InvalidArgumentError(
            "the credentials would cross the network in the clear; write tls://, or allow it with insecure",
            address=address,
        )
    security = DialSecurity(
        tls=(tls or default_tls or ClientTls()) if uses_tls else None,
        presenting=None if credentials is None else Presenting(credentials, clock),
    )
    security.context()
    return security
