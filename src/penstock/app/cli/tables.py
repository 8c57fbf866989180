"""``penstock table``."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.completion import table_names
from penstock.app.cli.common.loss import FINAL, Loss, confirm, done, lost_fields
from penstock.app.cli.common.options import ReasonOption, YesOption
from penstock.app.cli.common.output import print_facts, print_json, print_rows, say
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, ScopeArgument, open_target
from penstock.core.units import counted
from penstock.model.errors import KeyNotFoundError
from penstock.model.names import StreamName, table_segment_name
from penstock.model.policies import LONG_MAX

if TYPE_CHECKING:
    from penstock.client.store import AsyncStore
    from penstock.client.tables.entries import Entry

app = typer.Typer(
    help="Key-value tables: keys of fixed length with versions, shared with Pravega's Java client.",
    no_args_is_help=True,
)


def _table(text: str) -> str:
    StreamName.parse(text, kind="table").checked(kind="table")
    return text


TableArgument = Annotated[
    str, typer.Argument(metavar="SCOPE/TABLE", show_default=False, callback=_table, autocompletion=table_names)
]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", show_default=False, help="Primary key, as text.")]
SecondaryOption = Annotated[
    str, typer.Option("--secondary", metavar="KEY", help="Secondary key, as text.", show_default=False)
]


@app.command()
def create(
    table: TableArgument,
    primary: Annotated[
        int, typer.Option("--primary-bytes", metavar="N", min=1, help="Length of primary keys.", show_default=False)
    ],
    secondary: Annotated[
        int, typer.Option("--secondary-bytes", metavar="N", min=0, help="Length of secondary keys.")
    ] = 0,
    partitions: Annotated[int, typer.Option("--partitions", metavar="N", min=1, help="Number of partitions.")] = 1,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Create a table, and its scope if it is missing.

    \b
    penstock table create demo/devices --primary-bytes 8 --secondary-bytes 4 --partitions 4
    """
    with open_target(controller, data, create=True) as store:
        store.create_table(
            table,
            primary_key_bytes=primary,
            secondary_key_bytes=secondary,
            partitions=partitions,
            create_scope=True,
        )
    say(f"created table {table} with {counted(partitions, 'partition')}", as_json=json, table=table)


@app.command("list")
def list_tables(
    scope: ScopeArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """List the tables of a scope.

    \b
    penstock table list demo
    """
    with open_target(controller, data) as store:
        names = store.tables(scope)
    print_rows(["table"], [[f"{scope}/{name}"] for name in names], as_json=json)


@app.command()
def describe(
    table: TableArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Print the lengths of keys, the partitions and the number of entries.

    \b
    penstock table describe demo/devices
    """
    with open_target(controller, data) as store:
        config = store.table(table).config()
        entries = store.call(lambda inner: _count(inner, table))
    facts = {
        "table": table,
        "primary_key_bytes": config.primary_key_bytes,
        "secondary_key_bytes": config.secondary_key_bytes,
        "partitions": config.partitions,
        "entries": entries,
    }
    print_facts(facts, as_json=json)


@app.command()
def get(
    table: TableArgument,
    key: KeyArgument,
    secondary: SecondaryOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print the value and the version of a key.

    \b
    penstock table get demo/devices device-7 --secondary temp
    """
    with open_target(controller, data) as store:
        entry = store.table(table).get((key, secondary))
    if entry is None:
        raise KeyNotFoundError("no such key", table=table, key=key, secondary=secondary)
    print_facts(_fields(entry), as_json=json)


@app.command()
def put(
    table: TableArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", show_default=False, help="The value, as text.")],
    secondary: SecondaryOption = "",
    version: Annotated[
        int | None,
        typer.Option(
            "--if-version",
            metavar="N",
            min=0,
            max=LONG_MAX,
            help="Only if the key has this version.",
            show_default=False,
        ),
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Set the value of a key, and print its new version.

    \b
    penstock table put demo/devices device-7 21.5 --secondary temp
    """
    with open_target(controller, data) as store:
        found = store.table(table)
        place = (key, secondary)
        new = found.put(place, value) if version is None else found.replace(place, value, version)
    say(f"set {key} in {table}; version {new}", as_json=json, table=table, version=new)


@app.command()
def scan(
    table: TableArgument,
    first: Annotated[
        str | None, typer.Option("--first-key", metavar="KEY", help="First primary key.", show_default=False)
    ] = None,
    last: Annotated[
        str | None, typer.Option("--last-key", metavar="KEY", help="Last primary key.", show_default=False)
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print the entries in the order of their keys, between two primary keys.

    \b
    penstock table scan demo/devices --first-key device-1 --last-key device-8
    """
    with open_target(controller, data) as store:
        entries = store.table(table).scan(first=first, last=last)
        if json:
            for entry in entries:
                print_json(_fields(entry))
            return
        rows = [[_text(entry.primary), _text(entry.secondary), entry.version, _text(entry.value)] for entry in entries]
    print_rows(["key", "secondary", "version", "value"], rows, as_json=False)


@app.command()
def delete(
    table: TableArgument,
    yes: YesOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a table with its entries.

    Shows what will be lost and asks for confirmation. Without a terminal, it refuses unless --yes is given.

    \b
    penstock table delete demo/devices
    """
    with open_target(controller, data, why=reason) as store:
        entries = store.call(lambda inner: _count(inner, table))
        facts = {"data": counted(entries, "entry"), "undo": FINAL}
        loss = Loss(action=f"delete table {table}", facts=facts, fields={"entries": entries})
        confirm(loss, yes=yes, as_json=json)
        store.table(table).delete()
    say(done(f"deleted table {table}", loss), as_json=json, table=table, **lost_fields(loss))


async def _count(store: AsyncStore, table: str) -> int:
    """How many entries the table holds. Raises TableNotFoundError."""
    name = StreamName.parse(table)
    config = await store.table(name).config()
    found = [await store.segments.table_info(table_segment_name(name, n)) for n in range(config.partitions)]
    return sum(entries for _, entries, _ in found)


def _fields(entry: Entry) -> dict[str, Any]:
    """The entry for JSON. Bytes that are not UTF-8 are in base64, in a field named ``..._base64``."""
    fields: dict[str, Any] = {}
    for name, data in (("key", entry.primary), ("secondary", entry.secondary), ("value", entry.value)):
        try:
            fields[name] = data.decode()
        except UnicodeDecodeError:
            fields[f"{name}_base64"] = base64.b64encode(data).decode()
    return {**fields, "version": entry.version}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
