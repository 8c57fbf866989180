"""The protection of a server's ports, and the guard in front of its services."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.app.access.settings import AccessSettings
from penstock.core.access.refusals import Refusal
from penstock.net.security import Security
from penstock.net.tls.server_tls import ServerTls
from penstock.ports.clock import Clock
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import SegmentService
from penstock.ports.telemetry import Telemetry


def open_security(
    settings: AccessSettings | None,
    data: Path,
    tls: ServerTls | None,
    *,
    clock: Clock,
    telemetry: Telemetry,
    refused: Callable[[Refusal], None] | None = None,
    outdated: Callable[[], str | None] = lambda: None,
) -> Security:
    """The protection of the server's ports. Generates the store's key at the first use. ``refused`` receives each refusal.
    ``outdated``: why users and the list of tokens may not be used now; None: they may.

    Raises InvalidArgumentError (others can read a file with secrets, or a setting is wrong), CorruptDataError, OSError.
    """
    if settings is None:
        return Security(tls=tls)
    from penstock.app.access.identities import open_identities  # only here: most servers need no identities

    return open_identities(settings, data, tls, clock=clock, telemetry=telemetry, refused=refused, outdated=outdated)


def behind_doors(
    control: ControlPlane, segments: SegmentService, security: Security, telemetry: Telemetry
) -> tuple[ControlPlane, SegmentService]:
    """The services that the ports serve: guarded if callers need an identity, else the services themselves."""
    if security.authenticator is None:
        return control, segments
    from penstock.net.access.guarded import GuardedControl, guarded_segments
    from penstock.net.access.refusals import Refusals

    guarded = GuardedControl(control, Refusals(telemetry, telemetry.steady_s, security.refused))
    return guarded, guarded_segments(segments, guarded.rights)
