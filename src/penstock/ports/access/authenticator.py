"""Credentials that become identities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Protocol

from penstock.model.identity import Grant, Identity
from penstock.model.values.dataclass import dataclass

CREDENTIALS_MAX = 16 << 10
"""Characters of credentials; longer ones are refused before anything is parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presented:
    """What a caller presents. ``authorization``: the text of HTTP's header or gRPC's metadata of that name, such as
    ``Basic ...`` or ``Bearer ...``; empty: none. ``certificate``: the names in a client's certificate that TLS verified.
    ``peer``: the address."""

    authorization: str = field(default="", repr=False)
    certificate: tuple[str, ...] = ()
    peer: str = ""


class Authenticator(Protocol):
    """Verifies credentials. Takes the same time for unknown and known names."""

    async def identify(self, shown: Presented) -> Identity:
        """The identity that is proved. Authorization is used alone if it is given, else the certificate.

        Raises UnauthenticatedError (missing, wrong, expired), ThrottledError (too many wrong ones from there, or too many
        at the same time). If cancelled, an attempt may count as failed.
        """
        ...


class PresentRights(Protocol):
    """What identities may do now, for work that is performed in their name later."""

    def grants_of(self, name: str, proof: str) -> Sequence[Grant] | None:
        """The current rights of the identity, verified as ``proof`` says; empty if it was removed. None: identities of
        that proof are not listed here. Raises UnavailableError: the rights cannot be read now."""
        ...
