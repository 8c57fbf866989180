"""One task: read the facts of its share, write the decisions to a file, return the sums. Needs numpy and pyarrow."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.app.cli.common.words import subscriber_fields
from penstock.core.planner_json.lines import read_line
from penstock.core.planner_json.requests import FactsLine, encode_error, read_facts
from penstock.core.retention.facts import RetentionFacts
from penstock.core.retention.outlook import shape_of
from penstock.model.errors import CorruptDataError, InvalidArgumentError, PenstockError
from penstock.model.retention import EffectivePolicy
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.spark.fleet.changes import PolicyEdit
from penstock.spark.fleet.rows import FactsRows, Ints
from penstock.spark.fleet.screen import ASK, Codes, Screen
from penstock.spark.fleet.sources import LINE_MAX, Share, open_table, read_lines
from penstock.spark.fleet.store import Fault, StoreShare, store_lines
from penstock.spark.fleet.tally import CHANGE, TODAY, Tally
from penstock.spark.fleet.verdicts import SCHEMA, VERDICT, Verdicts, effect_of
from penstock.storage.machine.clock import RealClock

BATCH_ROWS = 8192
BATCH_LINES = 2048  # lines decided together
SCREENED_MIN = 16
"""If fewer rows than this share a policy, they go directly to the planner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The values that all tasks need. ``at_ms``: the time to decide for; the time of the facts if that is later or if None.
    ``out``: directory for decisions, None: do not write them. ``screen``: whether ``Screen`` may settle rows in bulk."""

    edit: PolicyEdit | None = None
    at_ms: int | None = None
    out: str | None = None
    screen: bool = True


def run(task: Task, share: Share | StoreShare, number: int) -> Any:
    """Decide the share, and return its sums as one batch of ``tally.SCHEMA``.

    With ``out``, the decisions are complete in ``out/part-NUMBER.parquet`` when this returns. A repeat writes the same file.
    Raises CorruptDataError (a truncated file), OSError, UnavailableError (the store does not come back).
    """
    tally = Tally()
    with _Output(task.out, number) as output:
        for batch in _decided(task, share, tally):
            output.write(batch)
    return tally.batch()


def _decided(task: Task, share: Share | StoreShare, tally: Tally) -> Iterator[Any]:
    if isinstance(share, StoreShare):
        return decided_store(task, share, tally)
    return decided_table(task, share, tally) if share.table else decided_lines(task, share, tally)


class _Output:
    """A file that appears when it is complete."""

    def __init__(self, directory: str | None, number: int) -> None:
        self._path = None if directory is None else Path(directory) / f"part-{number:05}.parquet"
        # Two attempts of one task may run at once.
        self._draft = None if self._path is None else self._path.with_name(f".{self._path.name}.{os.getpid()}")
        self._writer: Any = None

    def __enter__(self) -> _Output:
        if self._draft is not None:
            self._draft.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._draft, SCHEMA, compression="zstd")
        return self

    def write(self, batch: Any) -> None:
        if self._writer is not None:
            self._writer.write_batch(batch)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._writer is None or self._draft is None or self._path is None:
            return
        self._writer.close()
        if kind is None:
            self._draft.replace(self._path)
        else:
            self._draft.unlink()


# --- tables ---------------------------------------------------------------------------------------------------


def decided_table(task: Task, share: Share, tally: Tally) -> Iterator[Any]:
    """Decisions on row groups of a table, in their order."""
    first = share.first
    try:
        with open_table(share.source) as table:
            groups = list(range(share.start, table.metadata.num_row_groups if share.end is None else share.end))
            for batch in table.iter_batches(batch_size=BATCH_ROWS, row_groups=groups):
                yield decided_rows(task, FactsRows(batch), share.source, first, tally)
                first += batch.num_rows
    except pa.ArrowInvalid as error:
        raise CorruptDataError("table of facts cannot be read", facts=share.source, cause=str(error)[:120]) from error


def decided_rows(task: Task, rows: FactsRows, source: str, first: int, tally: Tally) -> Any:
    """Decisions on one batch of facts. ``first``: the number of its first row."""
    at_ms = rows.now_ms if task.at_ms is None else np.maximum(rows.now_ms, task.at_ms)
    batch = _Batch(scopes=rows.texts("scope"), names=rows.texts("name"), ids=rows.texts("id", null=True), source=source)
    today, change = _screened(task, rows, batch, at_ms)
    asked = set(today.asked())
    if change is not None:
        asked.update(change.asked())
    for row in sorted(asked):
        try:
            facts = rows.facts(row)
            now_ms = int(at_ms[row])
            if today.codes[row] == ASK:
                today.put(row, effect_of(facts, now_ms=now_ms))
            if change is not None and change.codes[row] == ASK and row not in batch.refused:
                _put_change(task, change, today, row, facts, batch, now_ms)
        except PenstockError as error:
            batch.errors[row] = words_of(error)
    return batch.finished(tally, today, change, np.arange(first, first + rows.rows), at_ms)


def _put_change(
    task: Task, change: Verdicts, today: Verdicts, row: int, facts: RetentionFacts, batch: _Batch, now_ms: int
) -> None:
    """Add the decision after the change. If the change does not affect the policy, it is the same as today's."""
    policy = facts.policy
    changed: EffectivePolicy | None = policy
    if task.edit is not None and task.edit.reaches(batch.scopes[row]):
        batch.reached += 1
        try:
            changed = task.edit.of(policy)
        except InvalidArgumentError as error:
            batch.refused[row] = words_of(error)
            return
    if changed is policy and row in today.effects:
        change.put(row, today.effects[row])
    else:
        change.put(row, effect_of(facts if changed is policy else replace(facts, policy=changed), now_ms=now_ms))


def _screened(task: Task, rows: FactsRows, batch: _Batch, at_ms: Ints) -> tuple[Verdicts, Verdicts | None]:
    """Decisions of rows that need no planner, today and after the change."""
    ask: Codes = np.full(rows.rows, ASK, np.int16)
    edit = task.edit
    if not task.screen:
        return Verdicts(ask), None if edit is None else Verdicts(ask.copy())
    screen = Screen(rows, at_ms)
    today = ask.copy()
    for policy, places in _by_policy(rows):
        today[places] = screen.only(places).settle(None if policy is None else shape_of(policy))
    if edit is None:
        return Verdicts(today), None
    change = today.copy()
    reached = _reached(edit, batch.scopes)
    change[reached] = ASK
    for policy, places in _by_policy(rows):
        places = places[reached[places]]
        if not len(places):
            continue
        try:
            changed = edit.of(policy)
        except InvalidArgumentError as error:
            plain = places[rows.plain[places]]
            batch.reached += len(plain)
            batch.refused.update(dict.fromkeys(plain.tolist(), words_of(error)))
            continue
        codes = screen.only(places).settle(shape_of(changed))
        change[places] = codes
        batch.reached += int(np.count_nonzero(codes != ASK))
    return Verdicts(today), Verdicts(change)


def _by_policy(rows: FactsRows) -> Iterator[tuple[EffectivePolicy | None, Ints]]:
    """The valid policies that many rows share, with their rows."""
    order = np.argsort(rows.policy_codes, kind="stable")
    codes, starts = np.unique(rows.policy_codes[order], return_index=True)
    for code, places in zip(codes.tolist(), np.split(order, starts[1:]), strict=True):
        policy = rows.policy_at(code)
        if len(places) >= SCREENED_MIN and not isinstance(policy, PenstockError):
            yield policy, places


def _reached(edit: PolicyEdit, scopes: Sequence[str]) -> Any:
    known = {scope: edit.reaches(scope) for scope in set(scopes)}
    return np.array([known[scope] for scope in scopes], np.bool_)


# --- lines ----------------------------------------------------------------------------------------------------


def decided_lines(task: Task, share: Share, tally: Tally) -> Iterator[Any]:
    """Decisions on lines of the planner's JSON, in order. Skips empty lines."""
    lines = read_lines(share)
    try:
        while some := list(islice(lines, BATCH_LINES)):
            numbered: list[tuple[int, bytes | Fault]] = [(place, line) for place, line in some if line.strip()]
            if numbered:
                yield _decided_batch(task, numbered, share.source, tally)
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptDataError("file of facts is cut off", facts=share.source, cause=str(error)[:120]) from error


def decided_store(task: Task, share: StoreShare, tally: Tally) -> Iterator[Any]:
    """Decisions on streams of a running store, in the order of their names."""
    for some in store_lines(share):
        if some:
            batch = _decided_batch(task, [(place, item.line) for place, item in some], share.source, tally)
            _take_subscribers(batch, [item.subscribers for _, item in some], tally)
            yield batch


def _take_subscribers(batch: Any, found: Sequence[Sequence[SubscriberInfo]], tally: Tally) -> None:
    """Count the subscribers of each row, as ``penstock subscriber list`` shows them."""
    now_ms = RealClock().now_ms()
    for scope, name, some in zip(
        batch.column("scope").to_pylist(), batch.column("name").to_pylist(), found, strict=True
    ):
        for item in some:
            tally.subscribed(subscriber_fields(f"{scope}/{name}", item, now_ms=now_ms))


def facts_line(line: bytes) -> FactsLine:
    """The facts of one line. Raises InvalidArgumentError, InvalidCutError."""
    if len(line) > LINE_MAX:
        raise InvalidArgumentError(f"line is longer than {LINE_MAX >> 20} MiB")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("line is not UTF-8") from error
    return read_line(text) or read_facts(text)


def _decided_batch(task: Task, lines: Sequence[tuple[int, bytes | Fault]], source: str, tally: Tally) -> Any:
    count = len(lines)
    today = Verdicts(np.full(count, ASK, np.int16))
    change = None if task.edit is None else Verdicts(np.full(count, ASK, np.int16))
    batch = _Batch(scopes=[""] * count, names=[""] * count, ids=[None] * count, source=source)
    at_ms = np.zeros(count, np.int64)
    for row, (_, line) in enumerate(lines):
        if isinstance(line, Fault):
            batch.scopes[row], batch.names[row] = line.stream.scope, line.stream.stream
            batch.errors[row] = f"{line.stream}: {words_of(line.error)}"
            continue
        try:
            found = facts_line(line)
            batch.scopes[row], batch.names[row] = found.scope, found.name
            batch.ids[row] = found.id if found.id is None or isinstance(found.id, str) else str(found.id)
            now_ms = found.now_ms if task.at_ms is None else max(found.now_ms, task.at_ms)
            at_ms[row] = now_ms
            today.put(row, effect_of(found.facts, now_ms=now_ms))
            if change is not None:
                _put_change(task, change, today, row, found.facts, batch, now_ms)
        except PenstockError as error:
            batch.errors[row] = words_of(error)
    return batch.finished(tally, today, change, np.array([place for place, _ in lines], np.int64), at_ms)


# --- out ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Batch:
    """The names of the rows, and their outcome. ``reached``: rows that the change applies to; ``refused``: of these,
    why it contradicts their policy; ``errors``: rows that cannot be used, and why."""

    scopes: list[str]
    names: list[str]
    ids: list[str | None]
    source: str
    reached: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    def finished(self, tally: Tally, today: Verdicts, change: Verdicts | None, places: Ints, at_ms: Ints) -> Any:
        """The rows, counted. A row with an error has no decision; where the change is refused, none with it."""
        count = len(self.scopes)
        for row, text in self.errors.items():
            tally.error(self.source, int(places[row]), text)
            today.skip(row)
        tally.take(TODAY, today, self.scopes, self.names)
        if change is not None:
            for row in {*self.errors, *self.refused}:
                change.skip(row)
            tally.take(CHANGE, change, self.scopes, self.names)
            tally.changed(self.reached, self.refused.values())
        columns = [
            pa.array(self.scopes, pa.string()),
            pa.array(self.names, pa.string()),
            pa.array(self.ids, pa.string()),
            pa.array([self.source] * count, pa.string()),
            pa.array(places),
            pa.array(at_ms),
            today.array(),
            pa.nulls(count, VERDICT) if change is None else change.array(),
            _texts(count, self.refused),
            _texts(count, self.errors),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _texts(count: int, texts: Mapping[int, str]) -> Any:
    return pa.array([texts.get(row) for row in range(count)], pa.string()) if texts else pa.nulls(count, pa.string())


def words_of(error: PenstockError) -> str:
    """The error as in the planner's JSON: the field, then the problem."""
    found = encode_error(None, error)["error"]
    return found["message"] if found["field"] is None else f"{found['field']}: {found['message']}"
