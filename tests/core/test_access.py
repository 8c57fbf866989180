"""Rights on resources, and the table of calls: every call has an entry, and what is not granted is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access.calls import CALLS, Rule, of_found, of_subscriber, on_stream, seen
from penstock.core.access.commands import delegable
from penstock.core.access.resources import covers, grant_text, of_stream, parse_grant, touches
from penstock.core.access.rights import ANY, LOOK, actions_on, allowed, meets, missing
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError
from penstock.model.identity import Action, Grant, Identity
from penstock.model.names import StreamName
from penstock.net.native.calls import control_calls, segment_calls
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.transactions import PositionCommit, StreamTransaction

STREAM = StreamName("shop", "orders")
OTHER = StreamName("shop", "secrets")


def who(*grants: str) -> Identity:
    return Identity(name="ann", proof="password", grants=tuple(map(parse_grant, grants)))


READER = who("/scope:shop/stream:orders=read", "/scope:shop/reader-group:app=read")


def test_every_call_has_an_entry_and_every_entry_a_call():
    calls = {call.name for subject in control_calls().values() for call in subject.values()}
    calls |= {call.name for call in segment_calls().values()}
    assert calls == set(CALLS)


def test_a_right_covers_the_resource_and_what_lies_below_it_by_whole_names():
    assert covers("/", "/")
    assert covers("/", "/scope:a/stream:b")
    assert covers("/scope:a", "/scope:a/stream:b")
    assert not covers("/scope:a", "/")
    assert not covers("/scope:a", "/scope:ab")
    assert not covers("/scope:a/stream:b", "/scope:a")
    assert not covers("/scope:a/stream:b", "/scope:a/reader-group:b")
    assert covers("/scope:*", "/scope:a/stream:b")
    assert covers("/scope:a/stream:o*", "/scope:a/stream:orders")
    assert covers("/scope:a/*", "/scope:a/stream:b")
    assert not covers("/scope:a/*", "/scope:a")
    assert touches("/scope:a/stream:b", "/scope:a")
    assert not touches("/scope:b/stream:b", "/scope:a")


NAMES = st.text("ab.-", min_size=1, max_size=3)
PATHS = st.one_of(
    st.just("/"),
    NAMES.map("/scope:{}".format),
    st.tuples(NAMES, st.sampled_from(["stream", "reader-group", "key-value-table"]), NAMES).map(
        lambda parts: "/scope:{}/{}:{}".format(*parts)
    ),
)


@given(
    granted=PATHS,
    resource=PATHS,
    action=st.sampled_from(list(Action)),
    actions=st.sets(st.sampled_from(list(Action)), min_size=1),
)
def test_a_right_allows_its_own_actions_below_its_own_resource_and_nothing_else(granted, resource, action, actions):
    identity = Identity(name="ann", proof="token", grants=(Grant(granted, frozenset(actions)),))
    inside = granted == "/" or resource == granted or resource.startswith(granted + "/")
    assert allowed(identity, action, resource) == (inside and action in actions)
    assert actions_on(identity.grants, [resource]) == (frozenset(actions) if inside else frozenset())


@given(path=PATHS, actions=st.sets(st.sampled_from(list(Action)), min_size=1))
def test_a_right_as_text_reads_back(path, actions):
    grant = Grant(path, frozenset(actions))
    assert parse_grant(grant_text(grant)) == grant


def test_pravegas_rights_are_read():
    assert parse_grant("prn::/scope:a/stream:b,READ") == Grant("/scope:a/stream:b", frozenset({Action.READ}))
    assert parse_grant("prn::*,READ_UPDATE").resource == "/"
    update = parse_grant("prn::/scope:a,READ_UPDATE").actions
    assert Action.WRITE in update
    assert Action.ERASE not in update
    assert Action.HOLD not in update


@pytest.mark.parametrize(
    "text",
    [
        "",
        "read",
        "/scope:a",
        "/scope:a=",
        "/scope:a=fly",
        "scope:a=read",
        "/stream:b=read",
        "/scope:a/stream:b/c=read",
        "/scope:a/=read",
        "/scope:_system=read",
        "/scope:a b=read",
        "/scope:a/stream:*x=read",
        "prn::/scope:a,WRITE",
    ],
)
def test_malformed_rights_are_refused(text):
    with pytest.raises(InvalidArgumentError):
        parse_grant(text)


def test_internal_names_belong_to_what_they_serve():
    group = "/scope:shop/reader-group:app"
    assert of_stream(StreamName("shop", "_RGapp")) == of_stream(StreamName("shop", "_GROUPapp")) == (group,)
    assert of_stream(StreamName("shop", "_MARKorders")) == of_stream(STREAM) == ("/scope:shop/stream:orders",)
    assert of_stream(StreamName("shop", "app_kvtable")) == ("/scope:shop/key-value-table:app", group)
    assert of_stream(StreamName("_system", "anything")) == ("/",)


@pytest.mark.parametrize("name", ["audit", "erasures"])
def test_the_records_of_the_stores_decisions_need_the_right_to_audit(name):
    audit = StreamName("_system", name)
    for wanted in ({Action.READ}, ANY, LOOK):
        assert meets(who("/=audit"), on_stream(wanted, audit))
        assert not meets(who("/=read,write,admin,retain,hold,erase,approve"), on_stream(wanted, audit))
    inner = on_stream({Action.READ}, StreamName("_system", "_tables"))
    assert not meets(who("/=read,audit"), inner)
    assert meets(who("/=admin"), inner)


def test_readers_of_a_group_write_its_state_but_not_its_streams():
    assert meets(READER, on_stream({Action.WRITE}, StreamName("shop", "_RGapp")))
    assert meets(READER, on_stream({Action.WRITE}, StreamName("shop", "app_kvtable")))
    assert not meets(READER, on_stream({Action.WRITE}, STREAM))
    table = who("/scope:shop/key-value-table:app=read")
    assert not meets(table, on_stream({Action.WRITE}, StreamName("shop", "app_kvtable")))


def test_readers_of_a_scope_get_no_token_that_changes_its_key_value_tables():
    """The Rust client's groups have tables of the same form, so only a right that names the group opens them."""
    table, everything = StreamName("shop", "app_kvtable"), {Action.READ, Action.WRITE, Action.ADMIN}
    for wide in (
        "/=read",
        "/scope:shop=read",
        "/scope:*=read",
        "/scope:shop/*=read",
        "/scope:shop/reader-group:*=read",
    ):
        assert delegable(who(wide), table) <= {Action.READ}, wide
    for named in (
        "/scope:shop/reader-group:app=read",
        "/scope:shop/reader-group:ap*=read",
        "/scope:shop=read,write,admin",
    ):
        assert delegable(who(named), table) == everything, named
    assert delegable(who("/scope:shop=read"), StreamName("shop", "_RGapp")) == everything
    assert delegable(who("/scope:shop/key-value-table:app=write"), table) == {Action.WRITE}


def may(identity: Identity, call: str, **given: Any) -> bool:
    return missing(identity, CALLS[call].needs(given)) is None


def test_calls_that_name_several_streams_need_a_right_on_each():
    txn = UUID(int=1)
    both = [StreamTransaction(stream=STREAM, id=txn), StreamTransaction(stream=OTHER, id=txn)]
    position = PositionCommit(scope="shop", group="app", group_id=txn, reader="r", id=txn)
    writer = who("/scope:shop/stream:orders=write", "/scope:shop/reader-group:app=read")
    assert may(writer, "transactions.commit_with_positions", transactions=both[:1], positions=position)
    assert not may(writer, "transactions.commit_with_positions", transactions=both, positions=position)
    assert not may(who("/scope:shop/stream:*=write"), "transactions.release_positions", positions=position)
    cuts = {stream: StreamCut(stream, {}) for stream in (STREAM, OTHER)}
    one, two = (
        ReaderGroupConfig(scope="shop", name="app", id=txn, start_cuts=dict(list(cuts.items())[:count]))
        for count in (1, 2)
    )
    for call in ("groups.create", "groups.update"):
        assert may(READER, call, config=one)
        assert not may(READER, call, config=two)
    hidden = ReaderGroupConfig(scope="shop", name="app", id=txn, start_cuts=one.start_cuts, end_cuts=cuts)
    assert not may(READER, "groups.create", config=hidden)
    names = ["shop/orders/0.#epoch.0", "shop/secrets/0.#epoch.0"]
    assert may(READER, "segments.infos", names=names[:1])
    assert not may(READER, "segments.infos", names=names)


def test_a_subscriber_of_another_scope_is_another_group():
    cut = StreamCut(STREAM, {})
    assert may(READER, "subscribers.publish", cut=cut, subscriber="shop/app")
    for subscriber in ("other/app", "app", "shop/app/x", "shop/", "/app", "shop/app2"):
        assert not may(READER, "subscribers.publish", cut=cut, subscriber=subscriber)
    assert of_subscriber("app").options[0][1] == "/"


def test_segments_are_streams_by_their_whole_name():
    for name in ("shop/orders", "shop/orders/0/1", "shop", "", "_system/_tables/controller", "shop//0.#epoch.0"):
        assert not may(READER, "segments.chunk_ranges", name=name)
    transaction = f"shop/orders/0.#epoch.0#transaction.{UUID(int=7).hex}"
    assert may(who("/scope:shop/stream:orders=write"), "segments.grant_import", name=transaction)


def test_no_action_includes_another():
    cases: Mapping[str, tuple[str, Mapping[str, Any]]] = {
        "streams.truncate": ("admin", {"stream": STREAM}),
        "policies.set": ("retain", {"target": STREAM}),
        "holds.add": ("hold", {"target": STREAM}),
        "erasures.erase": ("erase", {"stream": STREAM}),
        "transactions.commit": ("write", {"stream": STREAM}),
        "segments.chunk_ranges": ("read", {"name": "shop/orders/0.#epoch.0"}),
    }
    for call, (right, arguments) in cases.items():
        others = ",".join(action for action in Action if action != right)
        assert may(who(f"/={right}"), call, **arguments)
        assert not may(who(f"/={others}"), call, **arguments)


def listed(identity: Identity, call: str, items: Sequence[Any], **given: Any) -> list[Any]:
    return seen(identity, CALLS[call], given, items)


def test_listings_show_what_the_caller_may_see():
    assert listed(READER, "scopes.list", ["_system", "other", "shop"]) == ["shop"]
    assert listed(who("/=read"), "scopes.list", ["_system", "shop"]) == ["_system", "shop"]
    streams = ["_MARKorders", "_MARKsecrets", "_RGapp", "_RGother", "orders", "secrets"]
    assert listed(READER, "streams.list", streams, scope="shop") == ["_MARKorders", "_RGapp", "orders"]
    assert listed(READER, "groups.list", ["app", "other"], scope="shop") == ["app"]
    assert listed(READER, "tables.list", ["app"], scope="shop") == []
    holds = [SimpleNamespace(scope="shop", stream=one) for one in (None, STREAM, OTHER)]
    assert listed(READER, "holds.list", holds, target=None) == holds[:2]
    erasures = [SimpleNamespace(stream=str(one)) for one in (STREAM, OTHER)]
    assert listed(who("/scope:shop/stream:orders=audit"), "erasures.list", erasures, stream=None) == erasures[:1]


def may_on(identity: Identity, call: str, item: Any) -> bool:
    return missing(identity, of_found(CALLS[call], item)) is None


def test_what_is_named_by_id_needs_the_right_on_all_that_it_may_on():
    on_scope = SimpleNamespace(scope="shop", stream=None)
    assert not may_on(who("/scope:shop/stream:orders=hold"), "holds.release", on_scope)
    assert may_on(who("/scope:shop=hold"), "holds.release", on_scope)
    erasure = SimpleNamespace(stream="shop/orders")
    assert may_on(who("/scope:shop=erase"), "erasures.withdraw", erasure)
    assert not may_on(who("/scope:shop=audit"), "erasures.withdraw", erasure)
    case, everywhere = SimpleNamespace(targets=["crm", "shop/orders"]), SimpleNamespace(targets=["*"])
    assert may_on(who("/scope:shop=erase", "/scope:crm=erase"), "cases.close", case)
    assert may_on(who("/=erase"), "cases.close", everywhere)
    for identity in (who("/scope:shop=erase"), who("/scope:crm=erase"), who("/=audit,read")):
        assert not may_on(identity, "cases.close", case)
    assert listed(who("/scope:shop=erase", "/scope:crm=audit"), "cases.list", [case, everywhere]) == [case]
    assert not may(who("/scope:shop=erase"), "cases.open", targets=["shop", "crm"])


@pytest.mark.parametrize("name", sorted(CALLS))
def test_an_identity_without_rights_may_make_no_call(name):
    rule: Rule = CALLS[name]
    given: dict[str, Any] = {
        "scope": "shop", "stream": STREAM, "target": None, "cut": StreamCut(STREAM, {}), "names": ["a/b/0.#epoch.0"],
        "name": "shop/orders/0.#epoch.0", "segment": "shop/orders/0.#epoch.0", "position": StreamCut(STREAM, {}),
        "targets": ["shop"],
        "subscriber": "shop/app", "transactions": (), "config": ReaderGroupConfig(scope="shop", name="app", id=UUID(int=1)),
        "positions": PositionCommit(scope="shop", group="app", group_id=UUID(int=1), reader="r", id=UUID(int=1)),
    }  # fmt: skip
    stream = STREAM if rule.found_by == "hold" else "shop/orders"
    found = SimpleNamespace(scope="shop", stream=stream, targets=["shop"], target="shop/orders")
    needs = list(of_found(rule, found) if rule.found_by else rule.needs(given))
    assert needs
    assert missing(Identity(name="ann", proof="token"), needs) is needs[0]
    assert all(not need.below or rule.shows or name == "scopes.exists" or "lease" in name for need in needs)
