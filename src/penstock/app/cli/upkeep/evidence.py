"""``penstock audit``, ``penstock retention certificate`` and ``penstock verify``: prove what happened to data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.cli.common.options import PUBLIC_KEY, SINCE, UNTIL, ReasonOption, YesOption
from penstock.app.cli.common.output import NOT_TRUE_STATUS, print_json, print_rows, say
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, open_target
from penstock.app.cli.common.whole import whole_file
from penstock.app.cli.common.words import moment, parse_moment
from penstock.app.cli.erasure.ledger import public_keys
from penstock.core.evidence.documents import history, line
from penstock.core.evidence.verify import verify as verify_files
from penstock.core.units import counted
from penstock.model.errors import InvalidArgumentError
from penstock.storage.machine.calls import replace_file
from penstock.storage.machine.clock import RealClock

if TYPE_CHECKING:
    from penstock.model.answers.evidence import AuditLogInfo

app = typer.Typer(
    help="The audit log: its public key, signed checkpoints, and proofs for people who do not trust the store.",
    no_args_is_help=True,
)

FileArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", show_default=False, help="Write it to this file.  [default: print it]"),
]


def _write(file: Path | None, text: str, what: str, *, json: bool) -> None:
    if file is None:
        sys.stdout.write(text)
        return
    replace_file(file.absolute(), text.encode())
    say(f"{what} is in {file}", as_json=json, file=str(file))


def _print_key(log: AuditLogInfo, *, json: bool) -> None:
    if json:
        print_json(log)
    else:
        print(log.key)


@app.command()
def key(
    history_file: Annotated[
        Path | None,
        typer.Option(
            "--history",
            metavar="FILE",
            help="Also write the earlier keys to this file, each with its signature of the next one.",
            show_default=False,
        ),
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print the public key that signs checkpoints and documents. Give it to auditors by another way than the documents.

    The line is the verifier key of a signed note, as Go's sumdb/note and other tools read it.
    The private key is made on first use. It stays in the data directory, in a file that only its owner can read.

    \b
    penstock audit key > penstock.pub
    """
    with open_target(controller, data) as store:
        log = store.audit().log()
    if history_file is not None:
        rotations = [{"old": one.old, "new": one.new, "signature": one.signature} for one in log.rotations]
        replace_file(history_file.absolute(), line(history(rotations)).encode())
    _print_key(log, json=json)


@app.command("rotate-key")
def rotate_key(
    yes: YesOption = False,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Replace the key. The old key signs the new one in an audit entry, and its private part is deleted.

    Auditors who have the old public key go on using it: documents contain the signatures that lead to the new one.
    If the old private key was stolen, give auditors the new public key instead.

    \b
    penstock audit rotate-key --yes
    """
    if not yes and not (sys.stdin.isatty() and typer.confirm("Replace the key of the audit log?", err=True)):
        raise InvalidArgumentError("nothing was changed: confirm with --yes")
    with open_target(controller, data, why=reason) as store:
        _print_key(store.audit().rotate_key(), json=json)


@app.command()
def checkpoint(
    file: FileArgument = None,
    earlier: Annotated[
        Path | None,
        typer.Option(
            "--continues",
            metavar="FILE",
            help="Prove that the log continues the checkpoint in this file; the proof contains both.",
            show_default=False,
            exists=True,
        ),
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Sign how many entries the audit log has, and their root hash. Keep it away from the store.

    Nobody can change an entry from before a checkpoint without contradicting it, not even with the key.
    The format is that of transparency logs (C2SP tlog-checkpoint).

    \b
    penstock audit checkpoint monday.txt
    penstock audit checkpoint tuesday.json --continues monday.txt
    """
    with open_target(controller, data) as store:
        if earlier is None:
            text = store.audit().checkpoint().note
        else:
            text = store.audit().consistency(earlier.read_text(encoding="utf-8")).text
    _write(file, text, "the checkpoint" if earlier is None else "the proof", json=json)


@app.command()
def checkpoints(controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False) -> None:
    """Print the checkpoints that the store keeps: those asked for, and one a day while entries are added.

    \b
    penstock audit checkpoints --json
    """
    with open_target(controller, data) as store:
        found = store.audit().checkpoints()
    rows = [(one.at_ms if json else moment(one.at_ms), one.size, *([one.note] if json else [])) for one in found]
    print_rows(("at_ms", "entries", "note") if json else ("signed", "entries"), rows, as_json=json)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Write all entries of the audit log that the store still has to a file that proves itself.

    \b
    penstock audit export audit.jsonl
    """
    with open_target(controller, data) as store, whole_file(file) as draft, draft.open("wb") as target:
        count = store.audit().export(target.write)
    say(f"{counted(count, 'entry')} in {file}", as_json=json, entries=count, file=str(file))


@app.command()
def receipt(
    erasure: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    file: FileArgument = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Write the receipt of an erasure, signed, with the proof that the audit log has it.

    \b
    penstock audit receipt 5b0c5c2e6a1b4d0f receipt.json
    """
    with open_target(controller, data) as store:
        _write(file, store.audit().erasure(erasure).text, "the receipt", json=json)


@app.command()
def hold(
    hold_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    file: FileArgument = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Write who placed, extended and lifted a hold, and when, signed.

    \b
    penstock audit hold case-4711 hold.json
    """
    with open_target(controller, data) as store:
        _write(file, store.audit().hold(hold_id).text, "the document", json=json)


def certificate(
    target: Annotated[str, typer.Argument(metavar="SCOPE/STREAM|SCOPE", show_default=False)],
    file: FileArgument = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help=SINCE, show_default=False)] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help=UNTIL, show_default=False)] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Write a certificate of disposal, signed: what was deleted, when, by which rule, and who did it.

    \b
    penstock retention certificate crm/contacts disposal.json --since 2026-01-31
    """
    now_ms = RealClock().now_ms()
    from_ms = None if since is None else parse_moment(since, now_ms=now_ms, ago=True)
    to_ms = None if until is None else parse_moment(until, now_ms=now_ms, ago=True)
    with open_target(controller, data) as store:
        found = store.audit().disposal(target, since=from_ms, until=to_ms)
    _write(file, found.text, "the certificate", json=json)


def verify(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", show_default=False, exists=True, dir_okay=False)],
    keys: Annotated[
        list[str],
        typer.Option(
            "--public-key",
            metavar="PUBLIC_KEY",
            help=f"{PUBLIC_KEY} May be given again.",
            show_default=False,
        ),
    ],
    known: Annotated[
        list[Path] | None,
        typer.Option(
            "--known",
            metavar="FILE",
            help="A checkpoint that you kept: everything must continue it; may be given again.",
            show_default=False,
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Verify checkpoints, exports, receipts and certificates from files and the public key alone. Needs no store.

    Exit status 9: something does not hold. scripts/verify.py does the same without Penstock.

    \b
    penstock verify audit.jsonl receipt.json --public-key penstock.pub --known monday.txt
    """
    report = verify_files(
        {str(file): file.read_bytes() for file in files},
        public_keys(keys),
        known={str(file): file.read_bytes() for file in known or ()},
    )
    for one in report.findings:
        if json:
            print_json({"file": one.file, "holds": one.holds, "text": one.text})
        else:
            verdict = "not shown" if one.holds is None else "holds" if one.holds else "DOES NOT HOLD"
            print(f"{verdict}: {one.file}: {one.text}")
    if not report.holds:
        raise typer.Exit(NOT_TRUE_STATUS)
