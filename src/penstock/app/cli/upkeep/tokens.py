"""``penstock token``: tokens that prove an identity to a server with --auth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.app.cli.common.options import DATA, DURATIONS, GrantOption
from penstock.app.cli.common.output import print_json
from penstock.app.cli.common.target import JsonOption
from penstock.core.access.resources import grant_text, parse_grant
from penstock.core.units import parse_duration_ms
from penstock.model.errors import InvalidArgumentError
from penstock.storage.access.bearer import StoreTokens
from penstock.storage.access.store_key import load_key
from penstock.storage.access.users_file import users_path
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import is_complete
from penstock.storage.machine.rng import RealRng

TTL_MAX_S = 366 * 86_400

app = typer.Typer(help="Tokens of a server with --auth: for programs, instead of a password.", no_args_is_help=True)


@app.command()
def issue(
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the identity.")],
    grant: GrantOption = None,
    ttl: Annotated[
        str, typer.Option("--valid-for", metavar="DURATION", help=f"How long it is valid. {DURATIONS}")
    ] = "12h",
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help=DATA)] = Path("./store"),
    json: JsonOption = False,
) -> None:
    """Print a token, signed with the key of the store. A client sends it as Authorization: Bearer.

    A token cannot be revoked alone. Give it a short life, or remove DIR/access/tokens.key and start the server again: that
    ends all tokens.

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
    if not is_complete(data) and not users_path(data).exists():
        # A mistyped directory would get a key of its own, whose tokens no server accepts.
        raise InvalidArgumentError("there is no store in this directory; give its --data", path=str(data))
    token = StoreTokens(load_key(data), RealClock()).issue(name, grants, ttl_s=ttl_s, token_id=RealRng().uuid())
    if json:
        print_json({"name": name, "grants": list(map(grant_text, grants)), "ttl_seconds": ttl_s, "token": token})
    else:
        print(token)
