"""``penstock subject export``."""

from __future__ import annotations

import base64
import json as json_text
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.cli.common.output import say
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, open_target
from penstock.app.cli.common.whole import whole_file
from penstock.app.cli.erasure.cases import JsonFieldOption, TargetsArgument, ValuesOption
from penstock.app.erasure.values import values_from
from penstock.core.cases.case import checked_targets, matcher_of
from penstock.core.cases.matching import KeyedField
from penstock.core.units import counted
from penstock.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from penstock.app.erasure.subjects import SubjectExport

app = typer.Typer(help="A person's data: what the store has of it.", no_args_is_help=True)


@app.command()
def export(
    targets: TargetsArgument,
    values: ValuesOption,
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="A new file, .jsonl or .parquet.", show_default=False)
    ],
    json_field: JsonFieldOption = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Write all events of a person to a file, with stream, position and append time. It finds what an erasure finds.

    Events that an erasure with the same search has blanked are listed without their contents. In JSON, an event that is
    no UTF-8 text is in event_base64. Parquet needs the extra arrow.

    \b
    penstock subject export demo --json-field user.id --values-from ids.txt --output person.jsonl
    """
    from penstock.app.erasure.subjects import export_subject
    from penstock.client.cases import subject_of

    wanted, match = checked_targets(targets), matcher_of(subject_of(json_field, values_from(values)), None)
    if output.suffix not in (".jsonl", ".parquet") or output.exists() or isinstance(match, KeyedField):
        raise InvalidArgumentError("the output must be a new file, .jsonl or .parquet", output=str(output))
    rows: list[Mapping[str, Any]] = []
    with open_target(controller, data) as store, whole_file(output) as draft:
        if output.suffix == ".parquet":
            found = store.call(lambda opened: export_subject(opened, wanted, match, rows.append))
            _write_parquet(draft, rows)
        else:
            with draft.open("w", encoding="utf-8") as file:
                found = store.call(
                    lambda opened: export_subject(opened, wanted, match, lambda row: print(_line(row), file=file))
                )
    say(
        _words(found, output),
        as_json=json,
        output=str(output),
        events=found.events,
        erased=found.erased,
        unsearched=found.unsearched,
        deleted=found.deleted,
    )


def _words(found: SubjectExport, output: Path) -> str:
    return (
        f"wrote {counted(found.events, 'event')} of {counted(found.streams, 'stream')} to {output}; "
        f"{counted(found.erased, 'event')} erased"
        + (f"; {counted(found.unsearched, 'event')} cannot be searched" if found.unsearched else "")
        + (f"; not searched: {counted(found.deleted, 'deleted stream')} that can be restored" if found.deleted else "")
    )


def _line(row: Mapping[str, Any]) -> str:
    event = row["event"]
    fields = {name: value for name, value in row.items() if name != "event"}
    if event is not None:
        try:
            fields["event"] = event.decode()
        except UnicodeDecodeError:
            fields["event_base64"] = base64.b64encode(event).decode()
    return json_text.dumps(fields, ensure_ascii=False)


def _write_parquet(output: Path, rows: list[Mapping[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("stream", pa.string()),
            ("segment", pa.int64()),
            ("offset", pa.int64()),
            ("appended_ms", pa.int64()),
            ("event", pa.binary()),
            ("erasure", pa.string()),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), output)
