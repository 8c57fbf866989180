"""Which certificate a server presents, and which clients it accepts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

ClientAuth = Literal["required", "optional"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Files of a server's TLS, all in PEM.

    ``certificate`` is the server's own certificate, followed by its issuers up to the root, which may be missing. ``key``
    is its private key, readable by its owner only. ``client_ca``: certificates of the authorities whose clients are
    accepted (mutual TLS); None: clients need no certificate. ``client_auth``: whether each client must have one.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_auth: ClientAuth = "required"

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError."""
        if self.client_auth not in ("required", "optional"):
            raise InvalidArgumentError(
                "client_auth must be required or optional", client_auth=str(self.client_auth)[:40]
            )

    @property
    def files(self) -> tuple[Path, ...]:
        """All files, in a fixed order."""
        return (self.certificate, self.key, *(() if self.client_ca is None else (self.client_ca,)))

    def to_plain(self) -> Mapping[str, str | None]:
        """Plain values, for another process."""
        return {
            "certificate": str(self.certificate.absolute()),
            "key": str(self.key.absolute()),
            "client_ca": None if self.client_ca is None else str(self.client_ca.absolute()),
            "client_auth": self.client_auth,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The settings that another process sent."""
        client_ca = plain["client_ca"]
        return cls(
            certificate=Path(plain["certificate"]),
            key=Path(plain["key"]),
            client_ca=None if client_ca is None else Path(client_ca),
            client_auth=plain["client_auth"],
        )
