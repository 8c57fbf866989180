"""``penstock erase ledger``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.app.cli.common.options import DATA, PUBLIC_KEY
from penstock.app.cli.common.output import say
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, open_target
from penstock.core.units import counted
from penstock.model.errors import InvalidArgumentError

app = typer.Typer(
    help="The ledger of erasures: kept outside of the store, applied to restored copies of it.", no_args_is_help=True
)

LedgerOption = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        help="A ledger of the original: all that it erased is erased again before the first read.",
        show_default=False,
        exists=True,
    ),
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--erasure-key",
        metavar="FILE",
        help="The original's erasure.key, for cases with digests. Default: the copy has it.",
        show_default=False,
        exists=True,
    ),
]
PublicKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--public-key",
        metavar="PUBLIC_KEY",
        help=f"{PUBLIC_KEY} It verifies the ledger. Default: the copy's own key.",
        show_default=False,
    ),
]


def public_keys(given: Sequence[str] | None) -> list[str]:
    """The keys of the option. Each value is a key, or the name of a file with a key. Raises InvalidArgumentError."""
    return [item if "+" in item else _key_in(Path(item)) for item in given or ()]


def _key_in(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        raise InvalidArgumentError("no such file with a public key", file=str(file)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            "public key file cannot be read", file=str(file), reason=type(error).__name__
        ) from error


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]


@app.command()
def export(
    file: FileArgument,
    with_values: Annotated[
        bool, typer.Option("--with-values", help="Keep the values of cases, not only keyed digests of them.")
    ] = False,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Write all erasures and cases of the store to FILE, for copies of the store that are restored later.

    Run it after each erasure, and keep FILE apart from the store. It holds positions and digests. It holds values only
    with --with-values; without them, cases that look anywhere in payloads are applied by position only. The store signs
    FILE with the key of its audit log. A restore refuses a ledger that was changed or cut, or that another store wrote.
    If the server uses --auth, the export needs the right erase on /.

    \b
    penstock erase ledger export /safe/erasures.ledger
    """
    from penstock.app.erasure.ledger import write_ledger

    with open_target(controller, data) as store:
        found = store.cases().ledger(with_values=with_values)
    write_ledger(file.absolute(), found)
    numbers = {"erasures": len(found.erasures), "cases": len(found.cases)}
    text = f"wrote {counted(len(found.erasures), 'erasure')} and {counted(len(found.cases), 'case')} to {file}"
    say(text, as_json=json, file=str(file), **numbers)


@app.command()
def apply(
    file: FileArgument,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help=f"{DATA} An older copy.", show_default=False, exists=True)
    ],
    key: KeyOption = None,
    public_key: PublicKeyOption = None,
    json: JsonOption = False,
) -> None:
    """Erase again, in an older copy of a data directory, what FILE lists. Stop the server of the directory first.

    If the command is interrupted, the next start of the store goes on before it serves anybody. For a backup, give the
    ledger to the restore.

    \b
    penstock erase ledger apply /safe/erasures.ledger --data ./copy
    """
    import asyncio

    from penstock.app.embedded import embedded_settings, open_runtime
    from penstock.app.erasure.ledger import leave_ledger, read_ledger
    from penstock.storage.machine.data_directory import DataDirectory

    keys = public_keys(public_key)
    ledger = read_ledger(file, keys)
    directory = DataDirectory.look(data)
    try:
        leave_ledger(data, ledger, key, keys=keys)
    finally:
        directory.close()

    async def run() -> None:
        async with open_runtime(embedded_settings(data, {})):
            return

    asyncio.run(run())
    say(f"applied {file} to {data}", as_json=json, file=str(file), data=str(data), erasures=len(ledger.erasures))
