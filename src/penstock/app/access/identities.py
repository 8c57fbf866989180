"""The parts that verify callers and sign tokens, for a server whose callers need an identity."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from penstock.app.access.refusal_audit import AuditedAuthenticator
from penstock.app.access.settings import AccessSettings
from penstock.core.access.refusals import Refusal
from penstock.net.security import Security
from penstock.net.tls.server_tls import ServerTls
from penstock.ports.clock import Clock
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


def open_identities(
    settings: AccessSettings,
    data: Path,
    tls: ServerTls | None,
    *,
    clock: Clock,
    telemetry: Telemetry,
    refused: Callable[[Refusal], None] | None,
    outdated: Callable[[], str | None],
) -> Security:
    """As ``open_security``, which documents the arguments and errors."""
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
