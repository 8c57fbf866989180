"""How a server protects its ports."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.access.refusals import Refusal
from penstock.model.values.dataclass import dataclass
from penstock.net.tls.server_tls import ServerTls
from penstock.ports.access.authenticator import Authenticator, PresentRights
from penstock.ports.access.tokens import TokenIssuer, TokenVerifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The protection of the ports of one process; its parts are borrowed.

    ``tls``: None for plain connections. ``authenticator``: verifies who calls; None: callers need no identity, and the
    services must not be guarded. ``issuer`` and ``verifier`` of the tokens for segments: both are there if
    ``authenticator`` is, but a process that only holds segments has the ``verifier`` alone. ``rights``: what the users may
    do now. ``refused`` receives each refusal, on the spot.
    """

    tls: ServerTls | None = None
    authenticator: Authenticator | None = None
    issuer: TokenIssuer | None = None
    verifier: TokenVerifier | None = None
    rights: PresentRights | None = None
    refused: Callable[[Refusal], None] | None = None


OPEN = Security()
"""No protection: for ports that only this machine can reach."""
