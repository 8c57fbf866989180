"""Retention over HTTP, over the real controller and segment store in memory."""

from __future__ import annotations

import json
from urllib.parse import quote
from uuid import UUID

import pytest
from msgspec.structs import asdict
from rest_streams import STREAM, S, head_of, subscribed, with_events
from rest_support import FIRST, Running, play

from penstock.model.cuts import ENDS, StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError, TransactionStateError
from penstock.model.names import StreamName
from penstock.model.policies import StreamConfig
from penstock.net.http import retention_documents as mapping
from penstock.ports.control.subscribers import SubscriberInfo

FREE_ALL = {"retain": {"min_bytes": 0}, "unsubscribed": "release"}


def test_policies_are_said_at_three_levels_and_the_nearest_counts() -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 1)
        levels = {
            "/v1/retention": {"retain": {"max_bytes": 3000}, "grace_s": 5},
            "/v1/scopes/s/retention": {"retain": {"max_bytes": 2000, "max_age_s": 60}},
            f"{STREAM}/retention": {"retain": {"max_bytes": 1000}},
        }
        for path, document in levels.items():
            assert await run.expect(200, "GET", path) == {}
            assert await run.expect(200, "PUT", path, document) == document
            assert await run.expect(200, "GET", path) == document
        effective = await run.expect(200, "GET", f"{STREAM}/retention/effective")
        assert effective["retain"]["max_bytes"] == {"value": 1000, "from": "stream"}
        assert effective["retain"]["max_age_s"] == {"value": 60, "from": "scope"}
        assert effective["grace_s"] == {"value": 5, "from": "server"}
        assert effective["backlog"]["ttl_s"] == {"value": None, "from": "default"}
        await run.expect(204, "DELETE", f"{STREAM}/retention")
        assert await run.expect(200, "GET", f"{STREAM}/retention") == {}
        effective = await run.expect(200, "GET", f"{STREAM}/retention/effective")
        assert effective["retain"]["max_bytes"] == {"value": 2000, "from": "scope"}

    play(scene)


def test_null_is_unlimited_and_absence_is_not() -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 1)
        await run.expect(200, "PUT", "/v1/scopes/s/retention", {"retain": {"max_bytes": 2000}})
        document = {"retain": {"max_bytes": None}}
        assert await run.expect(200, "PUT", f"{STREAM}/retention", document) == document
        effective = await run.expect(200, "GET", f"{STREAM}/retention/effective")
        assert effective["retain"]["max_bytes"] == {"value": None, "from": "stream"}

    play(scene)


BAD_DOCUMENTS: list[tuple[dict[str, object], str]] = [
    ({"retain": {"max_byte": 1}}, "policy.retain.max_byte"),
    ({"retain": {"max_bytes": -1}}, "policy.retain.max_bytes"),
    ({"retain": {"max_bytes": "1GB"}}, "policy.retain.max_bytes"),
    ({"retain": {"max_bytes": 1.5}}, "policy.retain.max_bytes"),
    ({"retain": {"min_bytes": 10, "max_bytes": 5}}, "retain"),
    ({"retain": 5}, "policy.retain"),
    ({"unsubscribed": "maybe"}, "policy.unsubscribed"),
    ({"version": 2}, "policy.version"),
    ({"grace": 1}, "policy.grace"),
]


def test_a_document_that_cannot_be_used_is_refused_by_field_and_the_old_one_stays() -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 1)
        await run.expect(200, "PUT", f"{STREAM}/retention", FREE_ALL)
        for document, field in BAD_DOCUMENTS:
            for method, path in (("PUT", f"{STREAM}/retention"), ("POST", f"{STREAM}/retention/plan")):
                answer = await run.expect(400, method, path, document)
                assert field in answer["fields"]["field"], answer
        assert await run.expect(200, "GET", f"{STREAM}/retention") == FREE_ALL

    play(scene)


def test_a_plan_changes_nothing_and_a_run_does_what_was_planned() -> None:
    async def scene(run: Running) -> None:
        end = await with_events(run)
        assert (await run.expect(200, "GET", f"{STREAM}/retention/plan"))["frees_bytes"] == 0
        change = await run.expect(200, "POST", f"{STREAM}/retention/plan", FREE_ALL)
        assert change["frees_bytes"] == end
        assert await run.expect(200, "GET", f"{STREAM}/retention") == {}
        assert await head_of(run) == 0
        await run.expect(200, "PUT", f"{STREAM}/retention", FREE_ALL)
        plan = await run.expect(200, "GET", f"{STREAM}/retention/plan?at_ms=99999999999999")
        assert plan["frees_bytes"] == end
        assert await head_of(run) == 0
        done = await run.expect(200, "POST", f"{STREAM}/retention/run")
        assert done["truncate"] == {"0#0": end}
        assert await head_of(run) == end

    play(scene)


def test_explanations_take_a_position_in_each_of_its_forms() -> None:
    async def scene(run: Running) -> None:
        await with_events(run)
        whole = await run.expect(200, "GET", f"{STREAM}/retention/explain")
        assert "ranges" in whole
        cut = StreamCut(S, {FIRST: 300})
        text = cut.to_text()
        at = await run.expect(200, "GET", f"{STREAM}/retention/explain?position={quote(text, safe='')}")
        for form in (text, quote(json.dumps({"0#0": 300}))):
            assert await run.expect(200, "GET", f"{STREAM}/retention/explain?position={form}") == at
        for word in ENDS:
            await run.expect(200, "GET", f"{STREAM}/retention/explain?position={word}")
        other = StreamCut(StreamName("s", "other"), {FIRST: 300}).to_text()
        for bad in ("nonsense", "{", quote('{"0": 1}'), quote('{"0#0": "1"}'), quote(other, safe="")):
            await run.expect(400, "GET", f"{STREAM}/retention/explain?position={bad}")

    play(scene)


def test_reports_are_answered() -> None:
    async def scene(run: Running) -> None:
        await with_events(run)
        for name in ("reclaim", "forecast"):
            assert await run.expect(200, "GET", f"{STREAM}/retention/{name}")
        assert await run.expect(200, "GET", f"{STREAM}/retention/evictions") == {"evictions": []}

    play(scene)


def test_a_truncation_within_its_grace_can_be_taken_back_once() -> None:
    async def scene(run: Running) -> None:
        end = await with_events(run)
        assert (await run.expect(409, "POST", f"{STREAM}/retention/undo"))["class"] == "ConflictError"
        await run.expect(200, "PUT", f"{STREAM}/retention", FREE_ALL | {"grace_s": 3600})
        await run.expect(200, "POST", f"{STREAM}/retention/run")
        assert await head_of(run) == end
        answer = await run.expect(200, "POST", f"{STREAM}/retention/undo")
        assert answer["positions"] == {"0#0": 0}
        assert StreamCut.from_text(answer["cut"]) == StreamCut(S, {FIRST: 0})
        assert await head_of(run) == 0
        await run.expect(409, "POST", f"{STREAM}/retention/undo")

    play(scene)


def test_a_stream_is_truncated_by_hand_at_any_form_of_a_cut() -> None:
    async def scene(run: Running) -> None:
        end = await with_events(run)
        answer = await run.expect(200, "POST", f"{STREAM}/truncate", {"cut": {"0#0": 300}})
        assert (answer["positions"], await head_of(run)) == ({"0#0": 300}, 300)
        text = StreamCut(S, {FIRST: 500}).to_text()
        for cut in (text, text, "head"):
            assert (await run.expect(200, "POST", f"{STREAM}/truncate", {"cut": cut}))["positions"] == {"0#0": 500}
        for wrong in (
            {"cut": {"0#0": 400}},
            {"cut": {"0#0": end + 1}},
            {"cut": {"0#0": 600}, "more": 1},
            {},
            {"cut": None},
        ):
            assert (await run.call("POST", f"{STREAM}/truncate", wrong)).status == 400
        hold = await run.expect(201, "POST", "/v1/holds", {"stream": "s/events", "owner": "legal", "reason": "case 7"})
        refused = await run.expect(409, "POST", f"{STREAM}/truncate", {"cut": "tail"})
        assert (refused["class"], refused["fields"]["owner"]) == ("RetentionHoldError", "legal")
        await run.expect(200, "DELETE", f"/v1/holds/{hold['id']}?owner=legal")
        assert (await run.expect(200, "POST", f"{STREAM}/truncate", {"cut": "tail"}))["positions"] == {"0#0": end}

    play(scene)


def test_a_hold_keeps_what_it_covers_until_it_is_lifted() -> None:
    async def scene(run: Running) -> None:
        end = await with_events(run)
        await run.expect(200, "PUT", f"{STREAM}/retention", FREE_ALL)
        body = {"stream": "s/events", "owner": "legal", "reason": "case 7", "cut": {"0#0": 300}, "id": "case-7"}
        hold = await run.expect(201, "POST", "/v1/holds", body)
        assert hold == await run.expect(201, "POST", "/v1/holds", body), "the same once more changes nothing"
        assert (hold["id"], hold["stream"], hold["owner"]) == ("case-7", "s/events", "legal")
        assert StreamCut.from_text(hold["cut"]).positions == {FIRST: 300}
        for query in ("", "?scope=s", "?stream=s/events"):
            assert await run.expect(200, "GET", f"/v1/holds{query}") == {"holds": [hold]}
        await run.expect(200, "POST", f"{STREAM}/retention/run")
        assert await head_of(run) <= 300
        await run.expect(200, "PUT", f"{STREAM}/state", {"streamState": "SEALED"})
        assert (await run.expect(409, "DELETE", STREAM))["class"] == "RetentionHoldError"
        await run.expect(400, "DELETE", "/v1/holds/case-7")
        assert (await run.expect(200, "DELETE", "/v1/holds/case-7?owner=legal"))["id"] == "case-7"
        await run.expect(404, "DELETE", "/v1/holds/case-7?owner=legal")
        assert await run.expect(200, "GET", "/v1/holds") == {"holds": []}
        await run.expect(200, "POST", f"{STREAM}/retention/run")
        assert await head_of(run) == end

    play(scene)


def test_a_hold_on_a_scope_covers_its_streams() -> None:
    async def scene(run: Running) -> None:
        await with_events(run)
        await run.expect(200, "PUT", f"{STREAM}/retention", FREE_ALL)
        hold = await run.expect(201, "POST", "/v1/holds", {"scope": "s", "owner": "o", "reason": "r"})
        assert (hold["scope"], hold["stream"], hold["cut"]) == ("s", None, None)
        await run.expect(200, "POST", f"{STREAM}/retention/run")
        assert await head_of(run) == 0

    play(scene)


def test_a_deferred_erasure_is_shown_and_withdrawn() -> None:
    async def scene(run: Running) -> None:
        await with_events(run)
        assert await run.expect(200, "GET", "/v1/erasures") == {"erasures": []}
        hold = {"stream": "s/events", "owner": "legal", "reason": "case 7", "id": "case-7"}
        await run.expect(201, "POST", "/v1/holds", hold)
        asked = {"erasure": "e", "who": "ann", "why": "x", "looked_for": {}}
        await run.controller.erasures.erase(S, asked, {FIRST: [0]})
        state = await run.expect(200, "GET", "/v1/erasures/e")
        assert (state["state"], state["deferred"]["holds"][0]["hold"]) == ("deferred", "case-7")
        assert await run.expect(200, "GET", "/v1/erasures?stream=s/events") == {"erasures": [state]}
        await run.expect(404, "GET", "/v1/erasures?stream=s/other")
        for body in ({}, {"who": "bob"}, {"who": "bob", "why": "x", "more": 1}, {"who": "", "why": "x"}):
            await run.expect(400, "POST", "/v1/erasures/e/withdraw", body)
        withdrawal = {"who": "bob", "why": "wrong user"}
        found = await run.expect(200, "POST", "/v1/erasures/e/withdraw", withdrawal)
        assert (found["state"], found["withdrawn"]["why"]) == ("withdrawn", "wrong user")
        assert await run.expect(200, "POST", "/v1/erasures/e/withdraw", withdrawal) == found
        await run.expect(404, "POST", "/v1/erasures/none/withdraw", withdrawal)
        await run.controller.holds.release("case-7", owner="legal")
        await run.controller.erasures.erase(S, asked | {"erasure": "e2"}, {FIRST: [0]})
        refused = await run.expect(409, "POST", "/v1/erasures/e2/withdraw", withdrawal)
        assert refused["class"] == "ConflictError"

    play(scene)


BAD_HOLDS: list[dict[str, object]] = [
    {"owner": "o", "reason": "r"},
    {"scope": "s", "stream": "s/events", "owner": "o", "reason": "r"},
    {"scope": "s", "reason": "r"},
    {"scope": "s", "owner": "o"},
    {"scope": "s", "owner": "o", "reason": "r", "until": 5},
    {"scope": "s", "owner": "o", "reason": "r", "until_ms": -5},
    {"scope": "s", "owner": "o", "reason": "r", "cut": "head"},
    {"stream": "events", "owner": "o", "reason": "r"},
    {"stream": "s/events", "owner": "o", "reason": "r", "cut": 5},
    {"stream": "s/events", "owner": "o", "reason": "r", "cut": {"0": 5}},
]


def test_a_hold_that_is_not_wholly_said_is_refused() -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 1)
        for body in BAD_HOLDS:
            await run.expect(400, "POST", "/v1/holds", body)
        assert await run.expect(200, "GET", "/v1/holds") == {"holds": []}

    play(scene)


def test_a_subscriber_is_shown_moved_and_forgotten() -> None:
    async def scene(run: Running) -> None:
        end = await with_events(run)
        await subscribed(run)
        (shown,) = (await run.expect(200, "GET", f"{STREAM}/subscribers"))["subscribers"]
        assert (shown["name"], shown["positions"], shown["lag_bytes"]) == ("s/g", {"0#0": 0}, end)
        assert shown["lag_events"] == 10
        path = f"{STREAM}/subscribers/s/g"
        for spelling in (path, f"{STREAM}/subscribers/s%2Fg", f"{STREAM}/subscribers/g"):
            assert (await run.expect(200, "GET", spelling))["name"] == "s/g"
        for dry, query in (({"dry_run": True}, ""), ({}, "?dry_run=true")):
            moved = await run.expect(200, "PUT", path + query, {"cut": {"0#0": 300}} | dry)
            assert (moved["bytes"], moved["events"]) == (300, 3)
            assert (await run.expect(200, "GET", path))["positions"] == {"0#0": 0}
        await run.expect(200, "PUT", path, {"cut": "tail"})
        assert (await run.expect(200, "GET", path))["lag_bytes"] == 0
        back = await run.expect(200, "PUT", path, {"cut": StreamCut(S, {FIRST: 300}).to_text()})
        assert (back["bytes"], back["events"]) == (300 - end, -7)
        for bad in ({}, {"cut": None}, {"cut": "middle"}, {"cut": {"0#0": 300}, "dry": True}, {"cut": 5}):
            await run.expect(400, "PUT", path, bad)
        await run.expect(400, "PUT", f"{path}?dryrun=true", {"cut": "tail"})
        assert (await run.expect(200, "GET", path))["positions"] == {"0#0": 300}
        await run.expect(204, "DELETE", path)
        assert await run.expect(200, "GET", f"{STREAM}/subscribers") == {"subscribers": []}
        for method, body in (("GET", None), ("DELETE", None), ("PUT", {"cut": "tail"})):
            assert (await run.expect(404, method, path, body))["class"] == "SubscriberNotFoundError"

    play(scene)


def test_an_open_transaction_is_listed_and_aborted() -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 1)
        txn = (await run.controller.transactions.create(S, lease_ms=30_000)).id
        path = f"{STREAM}/transactions"
        (listed,) = (await run.expect(200, "GET", path))["transactions"]
        assert (listed["id"], listed["state"]) == (str(txn), "open")
        await run.expect(204, "DELETE", f"{path}/{txn}")
        await run.expect(204, "DELETE", f"{path}/{txn}")
        with pytest.raises(TransactionStateError):
            await run.controller.transactions.commit(S, txn)
        await run.expect(400, "DELETE", f"{path}/none")
        assert (await run.expect(404, "DELETE", f"{path}/{UUID(int=5)}"))["class"] == "TransactionNotFoundError"
        other = (await run.controller.transactions.create(S, lease_ms=30_000)).id
        await run.controller.transactions.commit(S, other)
        assert (await run.expect(409, "DELETE", f"{path}/{other}"))["class"] == "TransactionStateError"

    play(scene)


def test_a_deleted_stream_is_listed_and_restored_with_its_events() -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 3)
        await run.controller.streams.delete(S, seal=True)
        (listed,) = (await run.expect(200, "GET", "/v1/deleted-streams?scope=s"))["streams"]
        assert (listed["stream"], listed["size_bytes"], listed["rule"]) == ("s/events", 300, "manual")
        assert await run.expect(200, "GET", "/v1/deleted-streams?scope=other") == {"streams": []}
        await run.expect(404, "POST", f"{STREAM}/restore?incarnation=7")
        restored = await run.expect(200, "POST", f"{STREAM}/restore?incarnation=0")
        assert (restored["sealed"], restored["dropped_subscribers"]) == (False, [])
        assert (await run.controller.streams.describe(S)).size_bytes == 300
        await run.expect(409, "POST", f"{STREAM}/restore")
        await run.controller.streams.delete(S, seal=True)
        await run.controller.streams.create(S, StreamConfig())
        assert (await run.expect(409, "POST", f"{STREAM}/restore"))["class"] == "AlreadyExistsError"

    play(scene)


def test_unknown_parameters_are_refused_where_data_is_at_stake() -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 1)
        for method, path in (
            ("POST", f"{STREAM}/retention/run?dry_run=true"),
            ("POST", f"{STREAM}/retention/undo?at=1"),
            ("POST", f"{STREAM}/restore?stream=x"),
            ("GET", "/v1/deleted-streams?stream=s/events"),
            ("GET", f"{STREAM}/retention/plan?at=5"),
            ("GET", f"{STREAM}/retention/plan?at_ms=x"),
            ("GET", f"{STREAM}/retention/plan?at_ms=1&at_ms=2"),
            ("DELETE", f"{STREAM}/retention?level=scope"),
            ("GET", "/v1/holds?streams=s/events"),
            ("GET", "/v1/holds?scope=s&stream=s/events"),
            ("DELETE", f"{STREAM}/subscribers/g?dry_run=true"),
            ("DELETE", f"{STREAM}?dryrun=true"),
            ("DELETE", f"{STREAM}?dry_run=yes"),
            ("DELETE", "/v1/scopes/s?dry_run=true"),
            ("DELETE", "/v1/scopes/s/readergroups/g?dry_run=true"),
        ):
            assert (await run.expect(400, method, path))["class"] == "InvalidArgumentError"

    play(scene)


def test_what_there_is_not_is_answered_404_by_every_call() -> None:
    async def scene(run: Running) -> None:
        await run.controller.scopes.create("s")
        for method, path, body in (
            ("GET", "/v1/scopes/none/retention", None),
            ("PUT", "/v1/scopes/none/retention", FREE_ALL),
            ("GET", f"{STREAM}/retention", None),
            ("PUT", f"{STREAM}/retention", FREE_ALL),
            ("DELETE", f"{STREAM}/retention", None),
            ("GET", f"{STREAM}/retention/effective", None),
            ("GET", f"{STREAM}/retention/plan", None),
            ("POST", f"{STREAM}/retention/plan", FREE_ALL),
            ("GET", f"{STREAM}/retention/explain", None),
            ("GET", f"{STREAM}/retention/reclaim", None),
            ("GET", f"{STREAM}/retention/forecast", None),
            ("GET", f"{STREAM}/retention/evictions", None),
            ("POST", f"{STREAM}/retention/run", None),
            ("POST", f"{STREAM}/retention/undo", None),
            ("POST", f"{STREAM}/restore", None),
            ("POST", f"{STREAM}/truncate", {"cut": "tail"}),
            ("GET", f"{STREAM}/subscribers", None),
            ("GET", f"{STREAM}/subscribers/g", None),
            ("PUT", f"{STREAM}/subscribers/g", {"cut": "tail"}),
            ("DELETE", f"{STREAM}/subscribers/g", None),
            ("POST", "/v1/holds", {"stream": "s/none", "owner": "o", "reason": "r"}),
            ("POST", "/v1/holds", {"scope": "none", "owner": "o", "reason": "r"}),
            ("DELETE", "/v1/holds/none?owner=o", None),
        ):
            answer = await run.expect(404, method, path, body)
            assert answer["class"].endswith("NotFoundError"), (path, answer)

    play(scene)


def test_pravegas_interface_changes_its_own_part_of_the_document_only() -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 1)
        document = {"retain": {"min_bytes": 5 << 20}, "backlog": {"ttl_s": 60}, "grace_s": 7}
        await run.expect(200, "PUT", f"{STREAM}/retention", document)
        shown = await run.expect(200, "GET", STREAM)
        assert shown["retentionPolicy"] == {"type": "LIMITED_SIZE_MB", "value": 5}
        await run.expect(200, "PUT", STREAM, shown | {"retentionPolicy": {"type": "LIMITED_SIZE_MB", "value": 6}})
        found = await run.expect(200, "GET", f"{STREAM}/retention")
        assert found["retain"]["min_bytes"] == 6 << 20
        assert (found["backlog"], found["grace_s"]) == ({"ttl_s": 60}, 7)

    play(scene)


# --- the forms, without a server -----------------------------------------------------------------------------


def test_a_cut_is_read_in_both_forms_it_is_answered_in() -> None:
    cut = StreamCut(S, {FIRST: 5})
    document = mapping.cut_document(cut)
    assert document.positions == {"0#0": 5}
    for form in (document.cut, document.positions):
        assert mapping.cut_of(S, form, field="cut") == cut


@pytest.mark.parametrize(
    "value", ["x", 5, None, [], {"0": 1}, {"0#0": True}, {"0#0": 1.0}, {"0#0": -2}, {"9" * 11 + "#0": 1}]
)
def test_what_is_no_cut_is_refused(value: object) -> None:
    with pytest.raises((InvalidArgumentError, InvalidCutError)):
        mapping.cut_of(S, value, field="cut")


def test_what_is_not_known_of_a_subscriber_is_null() -> None:
    info = SubscriberInfo(name="s/g", generation=0, cut=None, updated_ms=5, lag_bytes=7)
    shown = asdict(mapping.subscriber_document(info))
    assert {name for name, value in shown.items() if value is None} == {
        *("cut", "positions", "lag_events", "lag_ms", "held_bytes", "query", "owner")
    }
