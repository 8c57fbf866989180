"""``penstock token``: tokens that prove an identity to a server with --auth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from penstock.app.cli.common.options import DATA, DURATIONS, NAME, GrantOption
from penstock.app.cli.common.output import print_json, print_rows, say
from penstock.app.cli.common.target import JsonOption
from penstock.app.cli.common.words import moment
from penstock.app.cli.upkeep.shared_changes import until_shared
from penstock.core.access.plans import PLAN_END_S
from penstock.core.access.resources import grant_text, parse_grant
from penstock.core.units import parse_duration_ms
from penstock.model.errors import InvalidArgumentError, NotFoundError, UnauthenticatedError
from penstock.storage.access.bearer import OWN_GRANTS, StoreTokens, grants_of
from penstock.storage.access.store_key import load_key
from penstock.storage.access.token_list import IssuedToken, change_tokens, load_tokens, tokens_path
from penstock.storage.access.users_file import users_path
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import is_complete
from penstock.storage.machine.rng import RealRng

TTL_MAX_S = 366 * 86_400

app = typer.Typer(help="Tokens of a server with --auth: for programs, instead of a password.", no_args_is_help=True)

DataOption = Annotated[Path, typer.Option("--data", metavar="DIR", help=DATA)]


@app.command()
def issue(
    name: Annotated[str, typer.Option("--name", metavar="NAME", help=f"{NAME} It is the identity of the caller.")],
    grant: GrantOption = None,
    ttl: Annotated[
        str, typer.Option("--valid-for", metavar="DURATION", help=f"How long it is valid. {DURATIONS}")
    ] = "12h",
    data: DataOption = Path("./store"),
    json: JsonOption = False,
) -> None:
    """Print a token, signed with the key of the store. A client sends it as Authorization: Bearer.

    If it leaks, end it with penstock token revoke.

    \b
    penstock token issue --name job --grant /scope:shop/stream:orders=read --valid-for 7d
    """
    ttl_s = parse_duration_ms(ttl) // 1000
    if not 1 <= ttl_s <= TTL_MAX_S:
        raise InvalidArgumentError("a token must be valid for 1 second to 366 days", valid_for=ttl)
    if not grant:
        raise InvalidArgumentError(
            "a token without rights can do nothing: give --grant, as in --grant /scope:shop=read"
        )
    grants = [parse_grant(text) for text in grant]
    _check_store(data)
    token_id = RealRng().uuid()
    token = StoreTokens(load_key(data), RealClock()).issue(name, grants, ttl_s=ttl_s, token_id=token_id)
    now_s = RealClock().now_ms() // 1000
    texts = tuple(map(grant_text, grants))
    entry = IssuedToken(id=token_id.hex, name=name, grants=texts, issued_s=now_s, expires_s=now_s + ttl_s)
    # Listed before anyone has it, so that every token can be found and revoked.
    change_tokens(tokens_path(data), lambda tokens: tokens.update({entry.id: entry}), now_s=now_s)
    if json:
        print_json({"id": entry.id, "name": name, "grants": list(texts), "ttl_seconds": ttl_s, "token": token})
    else:
        print(token)


@app.command("list")
def list_tokens(data: DataOption = Path("./store"), json: JsonOption = False) -> None:
    """List the tokens of a store, without the tokens themselves.

    A token is listed until a day after it has expired: plans of Spark jobs that were made with it may be valid that long.
    Revoke it to end them.

    A token that is not listed can be revoked with --leaked-token.

    \b
    penstock token list
    """
    _check_store(data)
    now_s = RealClock().now_ms() // 1000
    rows = [
        [
            token.id,
            token.name,
            _state(token, now_s),
            moment(token.issued_s * 1000),
            moment(token.expires_s * 1000),
            " ".join(token.grants),
        ]
        for token in load_tokens(tokens_path(data)).values()
        if token.plans_end_s > now_s
    ]
    print_rows(["id", "name", "state", "issued", "expires", "rights"], rows, as_json=json)


@app.command()
def revoke(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="As penstock token list shows them.", show_default=False)
    ] = None,
    leaked_token: Annotated[
        Path | None,
        typer.Option(
            "--leaked-token", metavar="FILE", help="A file with the token, if its id is not known.", show_default=False
        ),
    ] = None,
    data: DataOption = Path("./store"),
    json: JsonOption = False,
) -> None:
    """End tokens before they expire. A running server refuses them from the next call on, without a restart.

    It also ends plans of Spark jobs that were made with the token, even if the token has expired. Data connections keep
    their rights for up to 10 minutes, until their delegation tokens expire. A repeated call changes nothing.

    On a controller of a cluster, it returns once the cluster has the revocation. If this takes longer than 15 s, it fails,
    and the token is only revoked on this machine.

    \b
    penstock token revoke 5b0c5c2e6a1b4d0f8e7d6c5b4a392817
    penstock token revoke --leaked-token leaked.token
    """
    _check_store(data)
    now_s = RealClock().now_ms() // 1000
    shown = [] if leaked_token is None else [_token_in(leaked_token, data)]
    wanted = [*(ids or ()), *(token.id for token in shown)]
    if not wanted:
        raise InvalidArgumentError("name the tokens to revoke: their ids, or --leaked-token")

    def change(tokens: dict[str, IssuedToken]) -> None:
        for token in shown:
            tokens.setdefault(token.id, token)
        for key in wanted:
            if key not in tokens:
                raise NotFoundError("no token with this id is listed; see penstock token list", id=key[:80])
            if tokens[key].revoked_s is None:
                tokens[key] = replace(tokens[key], revoked_s=now_s)

    tokens = change_tokens(tokens_path(data), change, now_s=now_s)

    def is_in_force() -> bool:
        found = load_tokens(tokens_path(data))
        return all(key not in found or found[key].revoked_s is not None for key in wanted)

    until_shared(tokens_path(data), is_in_force)
    for key in dict.fromkeys(wanted):
        say(f"token {key} of {tokens[key].name} is revoked", as_json=json, id=key, name=tokens[key].name)


def _state(token: IssuedToken, now_s: int) -> str:
    if token.revoked_s is not None:
        return f"revoked {moment(token.revoked_s * 1000)}"
    return "valid" if token.expires_s > now_s else "expired"


def _token_in(file: Path, data: Path) -> IssuedToken:
    """The token in a file, for the list. Raises InvalidArgumentError: it is no token of this store, or all its plans
    have ended."""
    try:
        text = file.read_text(encoding="utf-8").strip()
        claims = StoreTokens(load_key(data), RealClock()).claims(text, ago_s=PLAN_END_S)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("the file has no token", path=str(file)) from error
    except UnauthenticatedError as error:
        raise InvalidArgumentError(
            "the file has no token of this store that is valid or expired less than a day ago, so there is nothing to revoke",
            path=str(file),
            reason=str(error),
        ) from error
    return IssuedToken(
        id=str(claims["jti"]),
        name=str(claims["sub"]),
        grants=tuple(map(grant_text, grants_of(claims.get(OWN_GRANTS)))),
        issued_s=int(claims["iat"]),
        expires_s=int(claims["exp"]),
    )


def _check_store(data: Path) -> None:
    """A mistyped directory would get a key and a list of its own, which no server reads. Raises InvalidArgumentError."""
    if not is_complete(data) and not users_path(data).exists():
        raise InvalidArgumentError("there is no store in this directory; give its --data", path=str(data))
