"""Tables with copies of erased events are part of a case: it is closed once they are done, or when somebody says so."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from urllib.request import Request, urlopen
from uuid import UUID

import pytest
from erasure_events import SECRET, events_of, fill
from typer.testing import CliRunner

import penstock
from penstock.app.cli.common.output import exit_code
from penstock.app.cli.main import app
from penstock.codec.control.cases import CaseStreamRecord
from penstock.codec.control.erasures import ErasureRecord, ErasureState
from penstock.controller import keys
from penstock.controller.erasure import confirmed
from penstock.controller.metadata import overwrite
from penstock.core.cases.progress import erasure_id
from penstock.core.streams.query_source import TABLE_PREFIX
from penstock.model.cuts import StreamCut
from penstock.model.errors import ConflictError, InvalidArgumentError, NotFoundError
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.queries import QuerySource
from penstock.model.segments import SegmentId
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.spark.jobs.erase_tables import _tables_of
from penstock.testing.server import ServerProcess

NAME = StreamName("s", "t")
TABLE = "delta /tables/clicks"
WHO = {"who": "ann", "why": "request 17"}


async def register(controller, group, query, segment=0):
    """What the job ``lake`` does: a subscriber that belongs to a table."""
    cut, manual = StreamCut(NAME, {SegmentId(segment): 0}), ReaderGroupRetention.MANUAL
    config = ReaderGroupConfig(scope="s", name=group, id=UUID(int=1), retention=manual, start_cuts={NAME: cut})
    await controller.groups.create(config)
    source = QuerySource(query=query, run="1")
    await controller.subscribers.publish(f"s/{group}", group_id=config.id, generation=0, cut=cut, source=source)


def test_a_case_closes_once_its_tables_are_done_or_with_pending_tables(tmp_path):
    with penstock.open(tmp_path / "data") as store:
        fill(store.create_stream("s/t", create_scope=True), 50)
        controller = store._inner.controller
        store._thread.call(register(controller, "g", TABLE_PREFIX + TABLE))
        store._thread.call(register(controller, "h", "a query"))
        for case in ("c", "d"):
            store.cases().open("s/t", [SECRET.decode()], case=case, **WHO)
            store.cases().wait(case)
        found = store.cases().show("c")
        (table,) = found.tables
        assert (table.table, table.state, list(table.erasures)) == (TABLE, "pending", list(found.erasures))
        (erasure,) = found.erasures
        with pytest.raises(ConflictError, match="tables still have rows") as caught:
            store.cases().close("c", **WHO)
        assert caught.value.fields["tables"] == TABLE

        def note(erasure, table, rows):
            return store._thread.call(controller.erasures.note_table(erasure, table, rows=rows))

        with pytest.raises(InvalidArgumentError, match="no such table"):
            note(erasure, "delta /elsewhere", 3)
        with pytest.raises(NotFoundError):
            note("nobody", TABLE, 3)
        assert [(item.table, item.state) for item in store.erasures().show(erasure).tables] == [(TABLE, "pending")]
        done = note(erasure, TABLE, 8)
        assert note(erasure, TABLE, 0) == done  # a repeat changes nothing
        assert [(item.state, item.rows) for item in done.tables] == [("done", 8)]
        assert [(item.state, item.erasures) for item in store.cases().show("c").tables] == [("done", [])]
        assert not store.cases().close("c", **WHO).ended.tables
        # The receipt is as it was: the state of the tables is beside it.
        assert store.erasures().verify(erasure).holds

        fill(store.stream("s/t"), 20, start=50)
        store.cases().look("d")
        with pytest.raises(ConflictError):
            store.cases().close("d", **WHO)
        ended = store.cases().close("d", **WHO, pending_tables=True)
        assert (ended.state, list(ended.ended.tables)) == ("closed", [TABLE])


def test_an_erasure_that_was_never_decided_is_pending_in_no_table(tmp_path):
    """A crash while a case asked for it has left it behind. No job can erase its rows, because it has no receipt."""
    with penstock.open(tmp_path / "data") as store:
        fill(store.create_stream("s/t", create_scope=True), 50)
        controller = store._inner.controller
        store._thread.call(register(controller, "g", TABLE_PREFIX + TABLE))
        store.cases().open("s/t", [SECRET.decode()], case="c", **WHO)
        store.cases().wait("c")
        (erasure,) = store.cases().show("c").erasures
        store._thread.call(controller.erasures.note_table(erasure, TABLE, rows=8))

        async def crash():
            metadata = controller.erasures._ctx.metadata
            of = await metadata.get(keys.case_stream("c", NAME), CaseStreamRecord)
            done = (await metadata.get(keys.erasure(erasure), ErasureRecord)).value
            begun = ErasureRecord(
                stream=str(NAME),
                incarnation=done.incarnation,
                state=ErasureState.GATHERING,
                asked=done.asked,
                asked_ms=done.asked_ms,
            )
            await metadata.put(overwrite(keys.erasure(erasure_id("c", NAME, 2)), begun))
            await metadata.put(of.put(replace(of.value, rounds=2)))

        store._thread.call(crash())
        assert [(item.state, item.erasures) for item in store.cases().show("c").tables] == [("done", [])]
        assert store.cases().close("c", **WHO).state == "closed"


@pytest.mark.parametrize("again", [False, True])
def test_a_case_does_not_close_while_tables_of_a_deleted_stream_are_pending(tmp_path, again):
    with penstock.open(tmp_path / "data", deletion_grace_ms=0) as store:
        fill(store.create_stream("s/t", create_scope=True), 50)
        controller = store._inner.controller
        store._thread.call(register(controller, "g", TABLE_PREFIX + TABLE))
        store.cases().open("s", [SECRET.decode()], case="c", **WHO)
        (erasure,) = store.cases().wait("c").erasures
        store.stream("s/t").delete(seal=True)
        if again:
            # A new stream of the name has no table, or another one; the rows of the old one stay.
            store.create_stream("s/t")
        (table,) = store.cases().show("c").tables
        assert (table.table, table.state, list(table.erasures)) == (TABLE, "pending", [erasure])
        with pytest.raises(ConflictError, match="tables still have rows"):
            store.cases().close("c", **WHO)
        services = SimpleNamespace(controller=controller)
        assert store._thread.call(_tables_of(services, NAME, erasure)) == [TABLE]
        store._thread.call(controller.erasures.note_table(erasure, TABLE, rows=8))
        assert not store.cases().close("c", **WHO).ended.tables


@pytest.mark.parametrize("has_table", [False, True])
def test_a_case_lists_a_table_that_may_have_rows_of_events_truncated_before_it(tmp_path, has_table):
    with penstock.open(tmp_path / "data") as store:
        stream = store.create_stream("s/t", create_scope=True)
        fill(stream, 50)
        if has_table:
            store._thread.call(register(store._inner.controller, "g", TABLE_PREFIX + TABLE))
        for case in ("before", "after"):
            store.cases().open("s/t", ["of nobody"], case=case, **WHO)
            assert not store.cases().wait(case).erasures
            defects = [item.why for item in store.cases().close(case, **WHO).defects]
            assert [TABLE in why for why in defects] == ([True] if has_table and case == "after" else [])
            stream.truncate(stream.tail())


ORDERS = [("table", "case", "late"), ("late", "table", "case"), ("case", "table", "late")]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("value", [SECRET.decode(), "of nobody"], ids=["found", "none"])
def test_a_case_stays_open_while_a_deleted_stream_has_left_rows_that_it_does_not_know(tmp_path, order, value):
    """The law: for each order of registering a table, opening a case and writing, before the stream is deleted."""
    with penstock.open(tmp_path / "data", deletion_grace_ms=0) as store:
        fill(store.create_stream("s/t", create_scope=True), 50)
        store.create_stream("s/other")
        controller = store._inner.controller
        for step in order:
            if step == "table":
                store._thread.call(register(controller, "g", TABLE_PREFIX + TABLE))
            elif step == "late":
                fill(store.stream("s/t"), 20, start=50)
            else:
                store.cases().open("s", [value], case="before", **WHO)
                store.cases().wait("before")
        store.cases().look("before")
        erasures = store.cases().show("before").erasures
        store.stream("s/t").delete(seal=True)
        store.cases().open("s", [value], case="after", **WHO)
        store.cases().wait("after")
        for again in (False, True):
            if again:
                store.create_stream("s/t")
                for case in ("before", "after"):
                    store.cases().look(case)
            # It has searched all, so it knows the erasures that the table lacks, if any.
            known = [(item.table, item.state, list(item.erasures)) for item in store.cases().show("before").tables]
            assert known == ([(TABLE, "pending", list(erasures))] if erasures else [])
            # This one has searched nothing, so nothing but a person can say that the table is clean.
            unknown = [(item.table, item.state, list(item.erasures)) for item in store.cases().show("after").tables]
            assert unknown == [(TABLE, "pending", [])]
            with pytest.raises(ConflictError, match="tables still have rows") as caught:
                store.cases().close("after", **WHO)
            assert caught.value.fields["tables"] == TABLE
        for erasure in erasures:
            store._thread.call(controller.erasures.note_table(erasure, TABLE, rows=1))
        assert not store.cases().close("before", **WHO).ended.tables
        assert list(store.cases().close("after", **WHO, pending_tables=True).ended.tables) == [TABLE]
        # An ended case says what it knew at its end, and no more.
        assert not [item for item in store.cases().show("before").tables if item.state == "pending"]


def test_events_after_the_last_search_of_a_deleted_stream_leave_its_table_pending(tmp_path):
    with penstock.open(tmp_path / "data", deletion_grace_ms=0) as store:
        fill(store.create_stream("s/t", create_scope=True), 50)
        store.create_stream("s/other")
        store._thread.call(register(store._inner.controller, "g", TABLE_PREFIX + TABLE))
        store.cases().open("s", ["of nobody"], case="c", **WHO)
        store.cases().wait("c")
        searches = store._inner.controller.cases._search
        searches.erase, searches.prove = nothing_found, none_left
        fill(store.stream("s/t"), 5, start=50)
        store.stream("s/t").delete(seal=True)
        assert [(item.table, item.state) for item in store.cases().show("c").tables] == [(TABLE, "pending")]
        with pytest.raises(ConflictError, match="tables still have rows"):
            store.cases().close("c", **WHO)


def entries_of(store, kind):
    store._thread.call(store._inner.controller.drain_audit())
    entries = [json.loads(event.data) for event in events_of(store.stream("_system/audit"))]
    return [entry for entry in entries if entry["kind"] == kind]


SAID = {"who": "bea", "why": "dropped"}


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_confirmed_table_of_a_deleted_stream_lets_the_case_close(tmp_path, order):
    """Whether the case lacks an erasure there or has searched nothing: it closes after the statement, and not before."""
    with penstock.open(tmp_path / "data", deletion_grace_ms=0) as store:
        fill(store.create_stream("s/t", create_scope=True), 50)
        store.create_stream("s/other")
        controller, cases = store._inner.controller, store.cases()
        for step in order:
            if step == "table":
                store._thread.call(register(controller, "g", TABLE_PREFIX + TABLE))
            elif step == "late":
                fill(store.stream("s/t"), 20, start=50)
            else:
                cases.open("s", [SECRET.decode()], case="before", **WHO)
                cases.wait("before")
        cases.look("before")
        erasures = cases.show("before").erasures
        with pytest.raises(ConflictError, match=r"the stream exists|nothing is pending"):
            cases.confirm_table("before", TABLE, stream="s/t", **SAID)
        store.stream("s/t").delete(seal=True)
        cases.open("s", [SECRET.decode()], case="after", **WHO)
        cases.wait("after")
        for case in ("before", "after"):
            with pytest.raises(ConflictError, match="tables still have rows"):
                cases.close(case, **WHO)
            for table, stream in ((TABLE, "s/other"), ("delta /elsewhere", "s/t")):
                with pytest.raises(ConflictError, match="nothing is pending"):
                    cases.confirm_table(case, table, stream=stream, **SAID)
            with pytest.raises(InvalidArgumentError, match="who and why"):
                cases.confirm_table(case, TABLE, stream="s/t", who="bea", why=" ")
            found = cases.confirm_table(case, TABLE, stream="s/t", **SAID)
            (table,) = found.tables
            assert (table.table, table.state, list(table.erasures)) == (TABLE, "confirmed", [])
            assert {(one.who, one.why) for one in table.confirmed} == {("bea", "dropped")}
            assert cases.confirm_table(case, TABLE, stream="s/t", who="cal", why="again") == found
            ended = cases.close(case, **WHO)
            assert (ended.state, list(ended.ended.tables)) == ("closed", [])
            # The end keeps the statement.
            assert cases.show(case).tables == found.tables
            with pytest.raises(ConflictError, match="has ended"):
                cases.confirm_table(case, TABLE, stream="s/t", **SAID)
        entries = entries_of(store, "table_confirmed")
        assert [item.get("erasure", item.get("case")) for item in entries] == [*erasures, "after"]
        assert {(item["target"], item["table"], item["who"], item["why"]) for item in entries} == {
            ("s/t", TABLE, "bea", "dropped")
        }
        for erasure in erasures:
            (table,) = store.erasures().show(erasure).tables
            assert (table.state, table.rows, table.confirmed.who) == ("confirmed", None, "bea")
            assert store.erasures().verify(erasure).holds


def test_a_statement_does_not_cover_a_stream_that_is_deleted_later(tmp_path):
    with penstock.open(tmp_path / "data", deletion_grace_ms=0) as store:
        cases, controller = store.cases(), store._inner.controller
        fill(store.create_stream("s/t", create_scope=True), 5)
        store.create_stream("s/other")
        store._thread.call(register(controller, "g", TABLE_PREFIX + TABLE))
        store.stream("s/t").delete(seal=True)
        cases.open("s", ["x"], case="c", **WHO)
        cases.wait("c")
        store.create_stream("s/t")
        cases.confirm_table("c", TABLE, stream="s/t", **SAID)
        searches = controller.cases._search
        searches.erase, searches.prove = nothing_found, none_left
        fill(store.stream("s/t"), 5)
        (segment,) = store.stream("s/t").tail().positions
        store._thread.call(register(controller, "h", TABLE_PREFIX + TABLE, segment))
        store.stream("s/t").delete(seal=True)
        (table,) = cases.show("c").tables
        assert (table.state, len(table.confirmed)) == ("pending", 1)
        with pytest.raises(ConflictError, match="tables still have rows"):
            cases.close("c", **WHO)
        (table,) = cases.confirm_table("c", TABLE, stream="s/t", **SAID).tables
        assert (table.state, len(table.confirmed)) == ("confirmed", 2)


def test_no_table_is_confirmed_while_its_stream_can_be_restored(tmp_path):
    with penstock.open(tmp_path / "data") as store:
        fill(store.create_stream("s/t", create_scope=True), 50)
        store._thread.call(register(store._inner.controller, "g", TABLE_PREFIX + TABLE))
        store.cases().open("s", [SECRET.decode()], case="c", **WHO)
        (erasure,) = store.cases().wait("c").erasures
        with pytest.raises(ConflictError, match="the stream exists"):
            store.erasures().confirm_table(erasure, TABLE, **SAID)
        store.stream("s/t").delete(seal=True)
        for confirm in (
            lambda: store.erasures().confirm_table(erasure, TABLE, **SAID),
            lambda: store.cases().confirm_table("c", TABLE, stream="s/t", **SAID),
        ):
            with pytest.raises(ConflictError, match="can still be restored"):
                confirm()
        assert [item.state for item in store.erasures().show(erasure).tables] == ["pending"]
        with pytest.raises(NotFoundError, match="no such erasure"):
            store.erasures().confirm_table("nobody", TABLE, **SAID)
        with pytest.raises(NotFoundError, match="no such case"):
            store.cases().confirm_table("nobody", TABLE, stream="s/t", **SAID)


def test_a_table_of_an_erasure_is_confirmed_by_command_and_the_job_may_still_report_it(tmp_path):
    data = tmp_path / "data"
    with penstock.open(data, deletion_grace_ms=0) as store:
        fill(store.create_stream("s/t", create_scope=True), 50)
        store.create_stream("s/other")
        store._thread.call(register(store._inner.controller, "g", TABLE_PREFIX + TABLE))
        store.cases().open("s", [SECRET.decode()], case="c", **WHO)
        (erasure,) = store.cases().wait("c").erasures
        store.stream("s/t").delete(seal=True)
    stated = ["--table", TABLE, "--reason", "dropped", "--owner", "bea", "--data", str(data)]
    done = CliRunner().invoke(app, ["erase", "confirm-table", erasure, *stated])
    assert (done.exit_code, done.output.count("confirmed by bea"), "not verified: dropped" in done.output) == (
        0,
        1,
        True,
    )
    shown = CliRunner().invoke(app, ["erase", "show", erasure, "--data", str(data)])
    assert f"{TABLE}: confirmed; confirmed by bea" in shown.output
    again = CliRunner().invoke(app, ["erase", "case", "confirm-table", "c", "s/t", *stated])
    assert (again.exit_code, again.output.count("confirmed by bea")) == (0, 1)
    none = CliRunner().invoke(app, ["erase", "case", "confirm-table", "c", "s/other", *stated])
    assert exit_code(none.exception) == 4
    with penstock.open(data, deletion_grace_ms=0) as store:
        note = store._inner.controller.erasures.note_table
        (table,) = store._thread.call(note(erasure, TABLE, rows=8)).tables
        assert (table.state, table.rows) == ("done", 8)
        with pytest.raises(InvalidArgumentError, match="no such table"):
            store.erasures().confirm_table(erasure, "delta /elsewhere", **SAID)


async def nothing_found(*_):
    return 0, ()


async def none_left(*_):
    return 0


def test_a_restored_stream_has_its_tables_as_subscribers_again(tmp_path):
    with penstock.open(tmp_path / "data") as store:
        fill(store.create_stream("s/t", create_scope=True), 50)
        controller = store._inner.controller
        store._thread.call(register(controller, "g", TABLE_PREFIX + TABLE))
        store.stream("s/t").delete(seal=True)
        store.restore_stream("s/t")
        store.cases().open("s", ["of nobody"], case="c", **WHO)
        assert not store.cases().wait("c").tables
        store.stream("s/t").remove_subscriber("s/g")
        store.stream("s/t").delete(seal=True)
        assert not store.cases().show("c").tables


def test_no_case_is_opened_about_a_deleted_stream_and_the_error_names_its_tables(tmp_path):
    with penstock.open(tmp_path / "data", deletion_grace_ms=0) as store:
        fill(store.create_stream("s/t", create_scope=True), 5)
        store._thread.call(register(store._inner.controller, "g", TABLE_PREFIX + TABLE))
        store.stream("s/t").delete(seal=True)
        for target in ("s/t", "s"):
            with pytest.raises(NotFoundError) as caught:
                store.cases().open(target, ["x"], case="c", **WHO)
            assert caught.value.fields["tables_of_deleted_streams"] == TABLE


def test_statements_leave_room_for_the_end_of_the_case(tmp_path, monkeypatch):
    with penstock.open(tmp_path / "data", deletion_grace_ms=0) as store:
        fill(store.create_stream("s/t", create_scope=True), 5)
        store.create_stream("s/other")
        for number, place in enumerate(("/a", "/b")):
            store._thread.call(register(store._inner.controller, f"g{number}", f"{TABLE_PREFIX}delta {place}"))
        store.stream("s/t").delete(seal=True)
        store.cases().open("s", ["x"], case="c", **WHO)
        store.cases().wait("c")
        monkeypatch.setattr(confirmed, "RECORD_MAX_BYTES", 3000)
        store.cases().confirm_table("c", "delta /a", stream="s/t", who="bea", why="w" * 1000)
        with pytest.raises(ConflictError, match="no room for more statements"):
            store.cases().confirm_table("c", "delta /b", stream="s/t", who="b" * 1000, why="w" * 1000)
        assert [item.state for item in store.cases().show("c").tables] == ["confirmed", "pending"]
        ended = store.cases().close("c", **WHO, pending_tables=True).ended
        assert list(ended.tables) == ["delta /b"]


@pytest.mark.server
def test_a_case_of_a_server_closes_after_a_statement_over_http(tmp_path):
    with (
        ServerProcess(tmp_path / "data", "--deletion-grace", "0s") as server,
        penstock.connect(server.address) as store,
    ):
        fill(store.create_stream("s/t", create_scope=True), 50)
        store.create_stream("s/other")
        (segment,) = store.stream("s/t").tail().positions
        store._thread.call(register(store._inner.controller, "g", TABLE_PREFIX + TABLE, segment))
        store.stream("s/t").delete(seal=True)
        store.cases().open("s", [SECRET.decode()], case="c", **WHO)
        store.cases().wait("c")
        asked = {"table": TABLE, "stream": "s/t", **SAID}
        request = Request(
            f"http://127.0.0.1:{server.http_port}/v1/erasure-cases/c/confirm-table",
            data=json.dumps(asked).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        with urlopen(request, timeout=30) as answer:
            (table,) = json.load(answer)["tables"]
        assert (table["state"], table["confirmed"][0]["who"]) == ("confirmed", "bea")
        assert store.cases().close("c", **WHO).state == "closed"
