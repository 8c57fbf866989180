"""The parts that verify callers and sign tokens, and the guard in front of the services."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from penstock.app.access.refusal_audit import AuditedAuthenticator
from penstock.app.access.settings import AccessSettings
from penstock.core.access.refusals import Refusal
from penstock.net.access.guarded import GuardedControl, guarded_segments
from penstock.net.access.refusals import Refusals
from penstock.net.security import Security
from penstock.net.tls.server_tls import ServerTls
from penstock.ports.clock import Clock
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import SegmentService
from penstock.ports.telemetry import Telemetry
from penstock.storage.access.authenticator import StoreAuthenticator
from penstock.storage.access.bearer import ProviderTokens, StoreTokens
from penstock.storage.access.delegation import Issuer, Verifier
from penstock.storage.access.key_sets import key_set
from penstock.storage.access.plan_tokens import PlanTokens
from penstock.storage.access.store_key import load_key
from penstock.storage.access.token_list import RevokedTokens, load_tokens, tokens_path
from penstock.storage.access.users_file import users_path

log = logging.getLogger(__name__)


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
    key = load_key(data)
    load_tokens(tokens_path(data))  # If it cannot be read, the start fails, and not each call.
    provider = None
    if settings.jwt is not None:
        keys = key_set(settings.jwt.jwks, steady_s=telemetry.steady_s)
        provider = ProviderTokens(settings.jwt, keys.key, clock)
    authenticator = StoreAuthenticator(
        users=settings.users or users_path(data),
        tokens=StoreTokens(key, clock),
        revoked=RevokedTokens(tokens_path(data)),
        plans=PlanTokens(key, clock),
        provider=provider,
        clock=clock,
        telemetry=telemetry,
        outdated=outdated,
    )
    if not authenticator.has_users and provider is None:
        log.warning(
            "there are no users: only tokens of this store are accepted; add one with "
            "penstock user add NAME --grant /=* --data DIR, or issue a token with penstock token issue",
            extra={"path": str(settings.users or users_path(data))},
        )
    return Security(
        tls=tls,
        authenticator=authenticator if refused is None else AuditedAuthenticator(authenticator, refused),
        refused=refused,
        rights=authenticator,
        issuer=Issuer(key, clock, token_s=settings.token_s),
        verifier=Verifier(key.public_bytes(), clock),
    )


def behind_doors(
    control: ControlPlane, segments: SegmentService, security: Security, telemetry: Telemetry
) -> tuple[ControlPlane, SegmentService]:
    """The services that the ports serve: guarded if callers need an identity, else the services themselves."""
    if security.authenticator is None:
        return control, segments
    guarded = GuardedControl(control, Refusals(telemetry, telemetry.steady_s, security.refused))
    return guarded, guarded_segments(segments, guarded.rights)
