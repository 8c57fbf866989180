"""Options that several commands take, and the words with which their help describes a format.

One name has one meaning in all commands: the same value, and help that begins with the same sentence. Further
sentences say what is special about one command. ``tests/app/test_cli_options.py`` holds it for the whole tree.
"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.codec.audit import AuditKind

SIZES = "For example 10GB or 512MiB."
DURATIONS = "For example 30s, 12h or 7d."
TIMES = "For example 2026-01-31 or 2026-01-31T12:00 (UTC), or 2026-01-31T12:00:00+01:00."
POSITIONS = "earliest (or head), latest (or tail), or a cut that `penstock stream describe` prints"
PLACES = "a data directory, a directory of tier 2, s3://BUCKET/PREFIX, or hdfs://NAMENODE:PORT/PATH"

DATA = "Data directory of the store."
TIER2 = "Where the store keeps its chunks: a directory, s3://BUCKET/PREFIX, or hdfs://NAMENODE:PORT/PATH."
SOURCE = f"Where the chunks are: {PLACES}."
AT = f"Position in the stream: {POSITIONS}."
FROM = f"First position: {POSITIONS}."
TO = f"Position: {POSITIONS}."
TIME_TOO = "A time such as 2026-01-31T12:00 (UTC) or 2026-01-31T12:00:00+01:00 also works."
SINCE = f"Only from this time on. {TIMES}"
UNTIL = f"Only until this time. {TIMES}"
AS_OF = "Decide as if it were this time: 7d from now, 2026-01-31 or 2026-01-31T12:00:00Z."
FOLLOW = "Wait for more."
RECORD = "Events are records. Each line is a JSON object with the fields value, key, headers and timestamp_ms."
FORMAT = "Format of the data."
PARTITION_BY = "Partition by hour or day."
DELETE_WHEN = "An event deletes its key from the table if this expression is true."
FACTS = "The planner's facts, one stream per line, as `penstock retention facts` prints them."
SCOPE = "All streams of this scope."
PNG = "Save a picture: .png, .svg or .pdf. Needs matplotlib."
SEGMENTS = "Number of segments."
INSECURE = "Allow traffic beyond loopback without TLS or authentication."
ID = "An id of your choice."
NAME = "A name of your choice."
WAIT = "Wait until it is done."
VALUES = "File with the values to look for, one per line."
PUBLIC_KEY = "What `penstock audit key` prints, or a file with it."
DDL = "Columns in Spark's DDL, for example 'sensor STRING, at BIGINT'."
KEY_BY = "Key of an event: a column or an SQL expression."
OPTION = "An option of the Spark source; may be given again. For example"
OUT = "Write the results to this directory."
KIND = "Only entries of this kind; may be given again: " + ", ".join(item.value for item in AuditKind) + "."

OwnerOption = Annotated[
    str | None,
    typer.Option(
        "--owner",
        metavar="NAME",
        help="Who is responsible, for the audit log.  [default: your user name]",
        show_default=False,
    ),
]
REASON = "Reason for this action."

ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help=f"{REASON} The audit log keeps it.", show_default=False)
]
TableOption = Annotated[
    str,
    typer.Option("--table", metavar="TABLE", help="The table, as it is listed: 'delta PLACE'.", show_default=False),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Stop after this many events.", show_default=False)
]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation. Required without a terminal.")
]
EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--s3-endpoint",
        metavar="URL",
        envvar="AWS_ENDPOINT_URL",
        help="An S3 server other than Amazon's.",
        show_default=False,
    ),
]
GrantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--grant",
        metavar="RIGHT",
        help="A right, RESOURCE=ACTIONS, for example /scope:shop=read,write; repeatable.",
        show_default=False,
    ),
]
InsecureOption = Annotated[bool, typer.Option("--insecure", help=INSECURE)]
