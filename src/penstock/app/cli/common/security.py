"""Options of every command that reaches a server: which authorities it trusts, and who it is.

They set the variables of the environment that name the same, so that processes which a command starts know it too. No
secret is among them: passwords and tokens stay in files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any

import typer

from penstock.model.credentials import CLIENT_CERT, CLIENT_KEY, PASSWORD_FILE, TLS_CA, TOKEN_FILE, USER


def _option(name: str, metavar: str, variable: str, text: str) -> Any:
    def keep(value: str | None) -> None:
        if value is not None:
            os.environ[variable] = value

    kept: Callable[[str | None], None] = keep
    return typer.Option(
        name,
        metavar=metavar,
        help=f"{text}  [env var: {variable}]",
        expose_value=False,
        callback=kept,
        show_default=False,
    )


_CA = "CA certificates to trust with a tls:// address, in PEM, instead of the system's."
TlsCaOption = Annotated[str | None, _option("--tls-ca", "FILE", TLS_CA, _CA)]
CertOption = Annotated[
    str | None, _option("--client-cert", "FILE", CLIENT_CERT, "Certificate to show to the server, in PEM.")
]
KeyOption = Annotated[str | None, _option("--client-key", "FILE", CLIENT_KEY, "Private key of --client-cert.")]
UserOption = Annotated[str | None, _option("--user", "NAME", USER, "User to authenticate as, with --password-file.")]
PasswordOption = Annotated[
    str | None, _option("--password-file", "FILE", PASSWORD_FILE, "File with the password of --user.")
]
TokenOption = Annotated[
    str | None,
    _option("--token-file", "FILE", TOKEN_FILE, "File with a bearer token; it is read again when the token expires."),
]


def _template(
    tls_ca: TlsCaOption = None,
    client_cert: CertOption = None,
    client_key: KeyOption = None,
    user: UserOption = None,
    password_file: PasswordOption = None,
    token_file: TokenOption = None,
) -> None:
    """Never called: Typer makes options only of a function's parameters."""


@cache
def _parameters() -> Sequence[Any]:
    app = typer.Typer(add_completion=False)
    app.command()(_template)
    return [one for one in typer.main.get_command(app).params if one.name != "help"]


def add_options(command: Any) -> None:
    """Add the options to a command that has ``--controller``, or to all such commands of a group."""
    for one in getattr(command, "commands", {}).values():
        add_options(one)
    names = {parameter.name for parameter in command.params}
    if "controller" in names and "tls_ca" not in names:
        command.params.extend(_parameters())
