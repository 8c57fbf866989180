"""``penstock user``: the users of a store, in a file of its data directory."""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from penstock.app.cli.common.options import DATA, GrantOption
from penstock.app.cli.common.output import print_rows, say
from penstock.app.cli.common.target import JsonOption
from penstock.app.cli.upkeep.shared_changes import until_shared
from penstock.core.access.resources import grant_text, parse_grant
from penstock.model.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from penstock.model.identity import Grant
from penstock.storage.access.passwords import PasswordHash, check_password, hash_password, import_pravega
from penstock.storage.access.users_file import (
    User,
    Users,
    certificate_name,
    change_users,
    load_users,
    users_path,
    with_grants,
)

PASSWORD_VARIABLE = "PENSTOCK_USER_PASSWORD"

app = typer.Typer(
    help="Users of a server with --auth. A running server takes changes at once, and needs no restart.",
    no_args_is_help=True,
)

DataOption = Annotated[Path, typer.Option("--data", metavar="DIR", help=DATA)]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
RightArgument = Annotated[
    list[str], typer.Argument(metavar="RIGHT...", help="RESOURCE=ACTIONS, for example /scope:shop/stream:orders=read.")
]
PasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--new-password-file",
        metavar="FILE",
        help="File whose first line is the password; - for standard input.",
        show_default=False,
    ),
]
CertificateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--certificate",
        metavar="NAME",
        help="A name in the client's certificate that proves this user: a host, a URI or an e-mail address; repeatable."
        " Then a password is optional.",
        show_default=False,
    ),
]


@app.command()
def add(
    name: NameArgument,
    grant: GrantOption = None,
    certificate: CertificateOption = None,
    password_file: PasswordFileOption = None,
    data: DataOption = Path("./store"),
    json: JsonOption = False,
) -> None:
    """Add a user.

    Asks for the password, or takes it from --new-password-file or the variable PENSTOCK_USER_PASSWORD.

    \b
    penstock user add ann --grant /scope:shop=read,write
    penstock user add admin --grant "/=*"
    penstock user add ingest --certificate ingest.shop --grant /scope:shop/stream:orders=write
    """
    names = tuple(map(certificate_name, certificate or ()))
    grants = _grants(grant or ())
    User(name=name)
    # Before anybody types a password.
    _check_new(load_users(users_path(data)), name)
    password = _password(password_file, asks=not names)

    def change(users: dict[str, User]) -> None:
        _check_new(users, name)
        known = {certificate_name(one) for user in users.values() for one in user.certificates}
        taken = [one for one in names if one in known]
        if taken:
            raise AlreadyExistsError("another user has this certificate", certificate=taken[0])
        users[name] = with_grants(User(name=name, password=password, certificates=names), grants)

    change_users(users_path(data), change)
    say(f"added user {name}", as_json=json, name=name, grants=[grant_text(one) for one in grants])


@app.command("list")
def list_users(data: DataOption = Path("./store"), json: JsonOption = False) -> None:
    """List the users and their rights.

    \b
    penstock user list
    """
    users = load_users(users_path(data)).values()
    if not users:
        print(f"no users in {users_path(data)}; add one with penstock user add, or name --data", file=sys.stderr)
    rows = [
        [
            user.name,
            "yes" if user.password else "no",
            " ".join(user.certificates),
            " ".join(map(grant_text, user.grants)),
        ]
        for user in users
    ]
    print_rows(["name", "password", "certificates", "rights"], rows, as_json=json)


@app.command()
def remove(name: NameArgument, data: DataOption = Path("./store"), json: JsonOption = False) -> None:
    """Remove a user. Tokens for data connections that the user has end within 10 minutes.

    \b
    penstock user remove ann
    """

    def change(users: dict[str, User]) -> None:
        del users[_known(users, name).name]

    change_users(users_path(data), change)
    until_shared(users_path(data), lambda: name not in load_users(users_path(data)))
    say(f"removed user {name}", as_json=json, name=name)


@app.command()
def passwd(
    name: NameArgument,
    password_file: PasswordFileOption = None,
    data: DataOption = Path("./store"),
    json: JsonOption = False,
) -> None:
    """Change the password of a user.

    \b
    penstock user passwd ann
    penstock user passwd ann --new-password-file - < secret
    """
    _known(load_users(users_path(data)), name)
    password = _password(password_file, asks=True)

    def change(users: dict[str, User]) -> None:
        users[name] = replace(_known(users, name), password=password)

    change_users(users_path(data), change)
    until_shared(users_path(data), lambda: _known(load_users(users_path(data)), name).password == password)
    say(f"changed the password of {name}", as_json=json, name=name)


@app.command()
def grant(
    name: NameArgument, right: RightArgument, data: DataOption = Path("./store"), json: JsonOption = False
) -> None:
    """Give a user rights, in addition to those it has.

    Actions: read, write, admin, retain, hold, erase, approve, audit, metrics, or * for all. None includes another
    one.

    \b
    penstock user grant ann /scope:shop/stream:orders=read,write
    penstock user grant officer /=hold,audit
    """
    _change_rights(data, name, added=_grants(right))
    say(f"granted {' '.join(right)} to {name}", as_json=json, name=name, grants=list(right))


@app.command()
def revoke(
    name: NameArgument, right: RightArgument, data: DataOption = Path("./store"), json: JsonOption = False
) -> None:
    """Take rights away from a user. The resource must be one that was granted.

    \b
    penstock user revoke ann /scope:shop/stream:orders=write
    """
    _change_rights(data, name, removed=_grants(right))
    say(f"revoked {' '.join(right)} from {name}", as_json=json, name=name, grants=list(right))


@app.command("import")
def import_users(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Pravega's password file: lines of user:hash:rights;")],
    data: DataOption = Path("./store"),
    json: JsonOption = False,
) -> None:
    """Import the users of Pravega's password file, with their passwords and rights.

    READ_UPDATE becomes read, write, admin and retain. Users that exist are left as they are.

    \b
    penstock user import conf/passwd --data ./store
    """
    lines = _text_of(file).splitlines()
    found = [_pravega(number, line) for number, line in enumerate(lines, 1) if _is_user(line)]
    added: list[str] = []

    def change(users: dict[str, User]) -> None:
        for user in found:
            if user.name not in users:
                users[user.name] = user
                added.append(user.name)

    change_users(users_path(data), change)
    say(f"imported {len(added)} of {len(found)} users", as_json=json, imported=added)


def _text_of(file: Path) -> str:
    """Raises InvalidArgumentError: it cannot be read."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidArgumentError("the file cannot be read", path=str(file), reason=str(reason)) from None


def _is_user(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def _pravega(number: int, line: str) -> User:
    """The user of a line. Raises InvalidArgumentError, which names the line and not the hash."""
    name, _, rest = line.strip().partition(":")
    digest, _, rights = rest.partition(":")
    try:
        grants = _grants([text for text in rights.split(";") if text.strip()])
        return with_grants(User(name=name, password=import_pravega(digest)), grants)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(error.message, line=number, user=name[:80]) from None


def _grants(texts: list[str] | tuple[str, ...]) -> tuple[Grant, ...]:
    return tuple(map(parse_grant, texts))


def _change_rights(data: Path, name: str, added: tuple[Grant, ...] = (), removed: tuple[Grant, ...] = ()) -> None:
    def change(users: dict[str, User]) -> None:
        users[name] = with_grants(_known(users, name), added, removed)

    change_users(users_path(data), change)

    def is_in_force() -> bool:
        user = load_users(users_path(data)).get(name)
        held = {} if user is None else {grant.resource: grant.actions for grant in user.grants}
        return not any(grant.actions & held.get(grant.resource, frozenset()) for grant in removed)

    if removed:
        until_shared(users_path(data), is_in_force)


def _check_new(users: Users, name: str) -> None:
    if name in users:
        raise AlreadyExistsError("the user exists; use penstock user passwd or grant", name=name)


def _known(users: Users, name: str) -> User:
    user = users.get(name)
    if user is None:
        raise NotFoundError("no such user", name=name[:80])
    return user


def _password(file: Path | None, *, asks: bool) -> PasswordHash | None:
    """The hash of the new password; None if none is given and none is asked for. Raises InvalidArgumentError."""
    if file is not None:
        text = sys.stdin.readline() if str(file) == "-" else _text_of(file).partition("\n")[0]
        return hash_password(check_password(text.removesuffix("\n")))
    given = os.environ.get(PASSWORD_VARIABLE)
    if given is not None:
        return hash_password(check_password(given))
    if not asks:
        return None
    if not sys.stdin.isatty():
        raise InvalidArgumentError(
            f"no password is given: use --new-password-file, or the variable {PASSWORD_VARIABLE}"
        )
    first = check_password(getpass.getpass("Password: "))
    if first != getpass.getpass("Again: "):
        raise InvalidArgumentError("the passwords differ")
    return hash_password(first)
