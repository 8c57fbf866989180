"""``penstock backup`` and ``penstock restore``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.cli.common.options import DATA, EndpointOption, InsecureOption
from penstock.app.cli.common.output import ProgressLine, print_json
from penstock.app.cli.common.target import JsonOption
from penstock.app.cli.common.words import NO_SECRETS, moment
from penstock.app.cli.erasure.ledger import KeyOption, LedgerOption, PublicKeyOption, public_keys
from penstock.app.cli.upkeep.scrub import DAMAGE_STATUS
from penstock.core.units import counted, format_size

if TYPE_CHECKING:
    from penstock.app.backup.manifest import Manifest

_SHOWN_MAX = 5  # keys of unreadable records in the output; all are in the manifest

app = typer.Typer(name="backup", help="Copy a store to a directory, and verify the copy.", no_args_is_help=True)


@app.command("create")
def create(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="A new directory.", show_default=False)],
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help=DATA, show_default=False)],
    endpoint: EndpointOption = None,
    insecure: InsecureOption = False,
    json: JsonOption = False,
) -> None:
    """Copy the store in DIR to BACKUP. Run it on the machine of the store. A store of one process may be running.

    The copy contains everything that was acknowledged before the command. While it runs, the store frees no disk space.
    Exit status 7: in the store, and so in the copy, chunks are missing or records cannot be read.

    \b
    penstock backup create /backups/monday --data ./store
    """
    import asyncio

    from penstock.app.backup.take import take_backup

    with ProgressLine(quiet=json) as line:
        manifest = asyncio.run(
            take_backup(
                data, backup, endpoint=endpoint, insecure=insecure, progress=lambda so_far: line.show(_so_far(so_far))
            )
        )
    if json:
        print_json({"backup": str(backup), **manifest.as_json()})
    else:
        print("\n".join([f"backed up {data} to {backup}", *_lines(manifest)]))
    if manifest.lacks:
        raise typer.Exit(DAMAGE_STATUS)


@app.command("verify")
def verify(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="A backup.", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Read every file of BACKUP and compare it with its checksum.

    Exit status 7: a file is damaged or missing, or the store was damaged when the backup was taken.

    \b
    penstock backup verify /backups/monday
    """
    import asyncio

    from penstock.app.backup.restore import verify_backup

    with ProgressLine(quiet=json) as line:
        manifest, damage = asyncio.run(verify_backup(backup, progress=lambda so_far: line.show(_so_far(so_far))))
    if json:
        print_json(
            {"backup": str(backup), "sound": not (damage or manifest.lacks), "damage": damage, **manifest.as_json()}
        )
    else:
        lines = [f"  {path}: {why}" for path, why in damage.items()]
        said = (
            [f"{counted(len(damage), 'file')} damaged:", *lines] if damage else ["every file of the backup is intact"]
        )
        print("\n".join([*_lines(manifest), *said]))
    if damage or manifest.lacks:
        raise typer.Exit(DAMAGE_STATUS)


def restore(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="A backup.", show_default=False)],
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help=f"{DATA} It must be new or empty.", show_default=False)
    ],
    ledger: LedgerOption = None,
    key: KeyOption = None,
    public_key: PublicKeyOption = None,
    json: JsonOption = False,
) -> None:
    """Create a store in the new directory from a backup. Every file is verified; BACKUP is not changed.

    All streams continue in new segments. A position that was reached in the original after the backup is refused, so it
    never points to a different event.

    With --ledger everything that the original has erased since the backup is erased again before the first read.

    \b
    penstock restore /backups/monday --data ./restored --ledger /safe/erasures.ledger
    """
    import asyncio

    from penstock.app.backup.restore import restore_backup

    with ProgressLine(quiet=json) as line:
        manifest = asyncio.run(
            restore_backup(
                backup,
                data,
                ledger=ledger,
                key=key,
                keys=public_keys(public_key),
                progress=lambda so_far: line.show(_so_far(so_far)),
            )
        )
    if json:
        print_json({"data": str(data), **manifest.as_json()})
        return
    print("\n".join([f"restored {data} from {backup}", *_lines(manifest), *_after(manifest, ledger)]))


def _so_far(so_far: Mapping[str, int]) -> str:
    return f"{counted(so_far['files'], 'file')}, {format_size(so_far['bytes'])}"


def _lines(manifest: Manifest) -> list[str]:
    lines = [
        f"  {counted(len(manifest.files), 'file')}, {format_size(manifest.size_bytes)}, "
        f"{_streams(manifest)}; taken {moment(manifest.began_ms)}"
    ]
    if manifest.missing:
        lines.append(
            f"  {counted(len(manifest.missing), 'chunk')} missing in the store, so their events cannot be read"
        )
    if manifest.unreadable:
        more = len(manifest.unreadable) - _SHOWN_MAX
        shown = [*manifest.unreadable[:_SHOWN_MAX], *([f"and {more} more"] if more > 0 else [])]
        lines.append(
            f"  {counted(len(manifest.unreadable), 'record')} cannot be read, copied unchanged: {', '.join(shown)}"
        )
    return lines


def _streams(manifest: Manifest) -> str:
    if manifest.workers is not None:
        return f"{manifest.workers} workers"
    return counted(len(manifest.streams), "stream")


def _after(manifest: Manifest, ledger: Path | None) -> list[str]:
    chain = manifest.erasures
    repeat = f"the erasures with receipts after number {chain['sequence']}" if chain else "all its erasures"
    erased = f"  events that the original erased after the backup are back: repeat {repeat} (`penstock erase`)"
    if ledger is not None:
        erased = f"  the erasures of {ledger} are performed; repeat any that it lacks"
    return [
        "before clients connect:",
        "  stop the original permanently, or give the restored store another address",
        erased,
        "  readers and queries that had read past the backup are refused: restart them at a position of your choice",
        f"  {NO_SECRETS}",
    ]
