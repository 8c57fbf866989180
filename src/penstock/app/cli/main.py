"""The command line ``penstock``."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

import typer

from penstock.app.cli import (
    erase,
    groups,
    holds,
    inspect,
    retention,
    scopes,
    streams,
    subscribers,
    tables,
    transactions,
)
from penstock.app.cli.cluster import cluster, controller, store
from penstock.app.cli.common.late import LateGroup, missing_package, narrowed
from penstock.app.cli.common.output import EXIT_CODES, NOT_TRUE_STATUS, exit_code, print_error
from penstock.app.cli.erasure import cases, ledger, subject
from penstock.app.cli.upkeep import approvals, backup, data, doctor, evidence, rebuild, scrub, servers, tokens, users
from penstock.model.errors import PenstockError, StorageFullError
from penstock.model.redaction import redacted

OVERVIEW = """\
Penstock stores ordered, durable streams of events, and guarantees when data is deleted.

Start here:
  penstock standalone --data ./store                    a store on localhost:9090, in this terminal
  penstock stream create demo/clicks --segments 4       in another one
  echo '{"user": 7}' | penstock write demo/clicks
  penstock read demo/clicks                             all events; --follow waits for more
  penstock retention set demo/clicks --min-age 7d --max-bytes 100MB
  penstock retention explain demo/clicks                what would be deleted, what is kept, and why

Every command takes --help and --json. Commands use the store at localhost:9090, at --controller HOST:PORT,
or in --data DIR without a server. Commands that delete show what is lost and ask; in scripts they need --yes.
"""

NOT_TRUE = (NOT_TRUE_STATUS, "a receipt, a checkpoint or another proof does not hold")

EXIT_HELP = (
    "Exit status: 0 done; "
    + "; ".join(f"{code} {text}" for code, text in sorted([*((c, t) for _, c, t in EXIT_CODES if t), NOT_TRUE]))
    + "."
)

app = typer.Typer(
    name="penstock",
    cls=LateGroup,
    help=OVERVIEW.replace("Start here:", "\b\nStart here:"),
    epilog=EXIT_HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
app.add_typer(scopes.app, name="scope")
app.add_typer(streams.app, name="stream")
app.add_typer(retention.app, name="retention")
app.add_typer(holds.app, name="hold")
app.add_typer(approvals.app, name="approval")
erase.app.command("request")(cases.request)
erase.app.command("cases")(cases.list_cases)
erase.app.add_typer(cases.app, name="case")
erase.app.add_typer(ledger.app, name="ledger")
app.add_typer(erase.app, name="erase")
app.add_typer(subject.app, name="subject")
app.add_typer(evidence.app, name="audit")
app.add_typer(subscribers.app, name="subscriber")
app.add_typer(groups.app, name="group")
app.add_typer(tables.app, name="table")
app.add_typer(transactions.app, name="txn")
app.add_typer(users.app, name="user")
app.add_typer(tokens.app, name="token")
app.add_typer(backup.app, name="backup")
app.add_typer(cluster.app, name="cluster")
app.add_typer(inspect.wal, name="wal")
app.add_typer(inspect.chunk, name="chunk")
app.command("standalone")(servers.standalone)
app.command("controller")(controller.controller)
app.command("store")(store.store)
app.command("demo")(servers.demo)
app.command("write")(data.write)
app.command("read")(data.read)
app.command("verify")(evidence.verify)
app.command("scrub")(scrub.scrub)
app.command("doctor")(doctor.doctor)
app.command("rebuild")(rebuild.rebuild)
app.command("restore")(backup.restore)


def _version(asked: bool) -> None:
    if asked:
        from penstock import __version__

        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    if context.invoked_subcommand is None:
        print(OVERVIEW)
        print("Commands: " + ", ".join(sorted(context.command.list_commands(context))))  # type: ignore[attr-defined]


def _fail(error: PenstockError) -> NoReturn:
    print_error(error, as_json="--json" in sys.argv)
    sys.exit(exit_code(error))


def _open_closed_streams() -> None:
    """Open closed standard streams to the null device. Else the next file or socket gets the number, and text that is printed
    goes into it, or libuv aborts the process when it closes it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The system assigns the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def main() -> None:
    """Run the command line and exit with a status of ``EXIT_CODES``."""
    _open_closed_streams()
    try:
        narrowed(app, sys.argv[1:])()
    except PenstockError as error:
        _fail(error)
    except ModuleNotFoundError as error:
        missing = missing_package(error)
        if missing is None:
            raise
        _fail(missing)
    except BrokenPipeError:
        # The reader of our output closed the pipe, as `| head` does: not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _fail(StorageFullError("the disk is full; free space and repeat the command"))
        print(f"penstock: {redacted(str(error))}", file=sys.stderr)
        sys.exit(1)
