"""How a server protects its ports."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.net.tls.server_tls import ServerTls


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The protection of the ports of one process; its parts are borrowed. ``tls``: None for plain connections."""

    tls: ServerTls | None = None


OPEN = Security()
"""No protection: for ports that only this machine can reach."""
