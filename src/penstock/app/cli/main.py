"""The command line ``penstock``."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

import typer

from penstock.app.cli.common.late import LateGroup, missing_package
from penstock.app.cli.common.output import EXIT_CODES, NOT_TRUE_STATUS, exit_code, print_error
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
or in --data DIR without a server. Commands that change a policy or delete show what is lost and ask; in
scripts they need --yes. `retention run` only does what the policy says, and does not ask.
"""

NOT_TRUE = (NOT_TRUE_STATUS, "a receipt, a checkpoint or another proof does not hold")

EXIT_HELP = (
    "Exit status: 0 done; "
    + "; ".join(f"{code} {text}" for code, text in sorted([*((c, t) for _, c, t in EXIT_CODES if t), NOT_TRUE]))
    + "."
)


class _Commands(LateGroup):
    late = {
        "standalone": ("penstock.app.cli.upkeep.servers:standalone", "Run a store, in one process or several."),
        "controller": ("penstock.app.cli.cluster.controller:controller", "Run a controller of a cluster."),
        "store": ("penstock.app.cli.cluster.store:store", "Run a store of a cluster."),
        "demo": (
            "penstock.app.cli.upkeep.servers:demo",
            "The demo: 336,776 flights through a store, a Spark query and retention, with a kill -9 in the middle.",
        ),
        "write": ("penstock.app.cli.upkeep.data:write", "Write standard input, one event per line."),
        "read": ("penstock.app.cli.upkeep.data:read", "Print the events, one per line, up to the current tail."),
        "verify": (
            "penstock.app.cli.upkeep.evidence:verify",
            "Verify checkpoints, exports, receipts and certificates from files and the public key alone.",
        ),
        "scrub": (
            "penstock.app.cli.upkeep.scrub:scrub",
            "Verify every checksum: of a running store, or with --data of one that is not running.",
        ),
        "doctor": (
            "penstock.app.cli.upkeep.doctor:doctor",
            "Check the data directory of a stopped store: versions, owner, damage, and what to do.",
        ),
        "rebuild": (
            "penstock.app.cli.upkeep.rebuild:rebuild",
            "Rebuild a store in a new directory from tier 2 alone, after the log or metadata is lost.",
        ),
        "restore": ("penstock.app.cli.upkeep.backup:restore", "Create a store in the new directory from a backup."),
        "scope": ("penstock.app.cli.scopes:app", "Create, list and delete scopes."),
        "stream": (
            "penstock.app.cli.streams:app",
            "Create, list, describe, scale, truncate, seal, repair, delete and restore streams.",
        ),
        "retention": (
            "penstock.app.cli.retention:app",
            "Retention: what a stream keeps and why, what would be deleted, and what was freed.",
        ),
        "hold": ("penstock.app.cli.holds:app", "Holds: data that no rule and no call may delete."),
        "approval": (
            "penstock.app.cli.upkeep.approvals:app",
            "Requests for the approval of a second identity (four eyes).",
        ),
        "erase": (
            "penstock.app.cli.erase:app",
            "Erasure: blank events in place, permanently, with a receipt that anyone can verify.",
        ),
        "subject": ("penstock.app.cli.erasure.subject:app", "A person's data: what the store has of it."),
        "audit": (
            "penstock.app.cli.upkeep.evidence:app",
            "The audit log: its public key, signed checkpoints, and proofs for people who do not trust the store.",
        ),
        "subscriber": (
            "penstock.app.cli.subscribers:app",
            "Subscribers of a stream: reader groups whose unread data is kept.",
        ),
        "group": (
            "penstock.app.cli.groups:app",
            "Reader groups: readers that share streams and acknowledge data together.",
        ),
        "table": (
            "penstock.app.cli.tables:app",
            "Key-value tables: keys of fixed length with versions, shared with Pravega's Java client.",
        ),
        "txn": (
            "penstock.app.cli.transactions:app",
            "Transactions: events that become readable together, or not at all.",
        ),
        "user": ("penstock.app.cli.upkeep.users:app", "Users of a server with --auth."),
        "token": (
            "penstock.app.cli.upkeep.tokens:app",
            "Tokens of a server with --auth: for programs, instead of a password.",
        ),
        "backup": ("penstock.app.cli.upkeep.backup:app", "Copy a store to a directory, and verify the copy."),
        "cluster": (
            "penstock.app.cli.cluster.cluster:app",
            "A store on several machines: create, inspect, move, repair, upgrade.",
        ),
        "wal": ("penstock.app.cli.inspect:wal", "The write-ahead log of a store that is not running."),
        "chunk": ("penstock.app.cli.inspect:chunk", "Chunks of tier 2."),
        # A room above this one, which only a name may reach.
        "spark": ("penstock.spark.cli:app", "Jobs that run on Spark, on this machine or with --master on a cluster."),
    }


app = typer.Typer(
    name="penstock",
    cls=_Commands,
    help=OVERVIEW.replace("Start here:", "\b\nStart here:"),
    epilog=EXIT_HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


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
        app()
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
