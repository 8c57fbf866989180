"""The policy document and holds as JSON: the page documents what the codec does, other input is refused, damage is not mistaken for age."""

from __future__ import annotations

import contextlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.control import policy_document as codec
from penstock.model.cuts import StreamCut
from penstock.model.errors import CorruptDataError, InvalidArgumentError, VersionTooNewError
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX
from penstock.model.retention import (
    EMPTY,
    INHERIT,
    Backlog,
    Combine,
    EffectivePolicy,
    HoldInfo,
    Idle,
    OnExceed,
    PolicyDocument,
    Retain,
    Unsubscribed,
)
from penstock.model.segments import make_segment_id

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "policy.md").read_text()


def values(item: codec.Field) -> st.SearchStrategy[Any]:
    """Legal values of a field, INHERIT included."""
    least = 0 if item.zero else 1
    by_kind: dict[codec.Kind, st.SearchStrategy[Any]] = {
        codec.Kind.BYTES: st.integers(least, LONG_MAX - 1),
        codec.Kind.EVENTS: st.integers(least, LONG_MAX - 1),
        codec.Kind.SECONDS: st.integers(least, 10**12) | st.floats(0.001, 10**9),
        codec.Kind.SHARE: st.floats(0, 1, exclude_min=True),
        codec.Kind.TIME: st.integers(0, 10**14).map(codec.text_of_ms),
    }
    legal = st.sampled_from(list(item.choices)) if item.choices else by_kind[item.kind]
    return st.just(INHERIT) | legal | (st.none() if item.null else st.nothing())


@st.composite
def documents(draw: st.DrawFn) -> PolicyDocument:
    """Documents whose fields are legal, each by itself."""

    def part(section: str) -> dict[str, Any]:
        return {item.name: draw(values(item)) for item in codec.FIELDS if item.section == section}

    return PolicyDocument(
        retain=Retain(**part("retain")), backlog=Backlog(**part("backlog")), idle=Idle(**part("idle")), **part("")
    )


@given(documents())
def test_a_document_comes_back_as_it_went(document: PolicyDocument) -> None:
    assert codec.decode_document(json.loads(json.dumps(codec.encode_document(document)))) == document
    assert codec.unpack_document(codec.pack_document(document)) == document


def test_the_three_states_of_a_field_are_three() -> None:
    said = [{}, {"retain": {"max_bytes": None}}, {"retain": {"max_bytes": 5}}]
    assert [codec.decode_document(body).retain.max_bytes for body in said] == [INHERIT, None, 5]
    assert [codec.encode_document(codec.decode_document(body)) for body in said] == said


@pytest.mark.parametrize("body", [None, {}, {"retain": None}, {"retain": {}, "backlog": None}, {"version": 1}])
def test_what_says_nothing_is_the_empty_document(body: Any) -> None:
    assert codec.decode_document(body) == EMPTY
    assert EMPTY.is_empty


def test_golden_bytes_decode_for_ever() -> None:
    document = PolicyDocument(
        retain=Retain(min_bytes=1, min_age_s=0.5, combine=Combine.ALL, max_bytes=None),
        unsubscribed=Unsubscribed.KEEP,
        backlog=Backlog(max_events=7, on_exceed=OnExceed.EVICT, evict_to=0.5),
        grace_s=60,
    )
    golden = (
        b'{"version":1,"retain":{"min_bytes":1,"min_age_s":0.5,"combine":"all","max_bytes":null},"unsubscribed":"keep",'
        b'"backlog":{"max_events":7,"on_exceed":"evict","evict_to":0.5},"grace_s":60}'
    )
    assert codec.pack_document(document) == golden
    assert codec.unpack_document(golden) == document


def rows(heading: str) -> list[list[str]]:
    lines = [line for line in PAGE.split(heading, 1)[1].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_tells_what_the_codec_takes() -> None:
    table = [row for row in rows("# Format") if len(row) == 6]
    assert [row[0].strip("`") for row in table] == [item.path for item in codec.FIELDS]
    for row, item in zip(table, codec.FIELDS, strict=True):
        if item.choices is None:
            assert row[1] == item.kind.value, item.path
            assert row[2] == ("yes" if item.zero and item.kind is not codec.Kind.SHARE else "no"), item.path
        else:
            assert re.findall(r"`(\w+)`", row[1]) == [member.value for member in item.choices], item.path
        assert row[3] == ("yes" if item.null else "no"), item.path


def test_the_page_tells_the_defaults() -> None:
    from penstock.core.policies.levels import _NAMES

    plain = EffectivePolicy()
    for row in rows("# Format"):
        if len(row) != 6 or row[0] in (
            "`unsubscribed`",
            "`retain.min_bytes`",
            "`retain.min_age_s`",
            "`retain.lock_until`",
        ):
            continue
        if row[0].strip("`") in codec.QUOTA_ACTIONS:
            assert row[4] == "as `on_exceed`"
            continue
        value = getattr(plain, _NAMES[row[0].strip("`")])
        shown = "unlimited" if value is None else f"`{getattr(value, 'value', value)}`"
        assert row[4] == shown, row[0]


def test_the_example_of_the_page_names_every_field() -> None:
    body = json.loads(PAGE.split("```json\n")[1].split("```")[0])
    document = codec.decode_document(body)
    assert {"version": 1, **codec.encode_document(document)} == body
    assert all(codec.value_of(document, item.path) is not INHERIT for item in codec.FIELDS)


def test_the_page_tells_the_fields_of_a_hold() -> None:
    hold = HoldInfo(id="a", scope="s", stream=None, owner="o", reason="r", created_ms=1)
    assert [row[0].strip("`") for row in rows("## Hold")] == list(codec.encode_hold(hold))


@pytest.mark.parametrize(
    ("body", "field", "rule"),
    [
        (7, "policy", "the document is an object"),
        ([], "policy", "the document is an object"),
        ({"retain": 7}, "policy.retain", "the section retain is an object"),
        ({"retian": {}}, "policy.retian", "only known fields are accepted"),
        ({"retain": {"min": 1}}, "policy.retain.min", "only known fields are accepted"),
        ({"version": 2}, "policy.version", "it is the version of the format"),
        ({"version": True}, "policy.version", "it is the version of the format"),
        ({"retain": {"min_bytes": True}}, "policy.retain.min_bytes", "it is a number"),
        ({"retain": {"min_bytes": "5"}}, "policy.retain.min_bytes", "it is a number"),
        ({"retain": {"min_bytes": math.nan}}, "policy.retain.min_bytes", "it is a finite number"),
        ({"retain": {"min_age_s": math.inf}}, "policy.retain.min_age_s", "it is a finite number"),
        ({"retain": {"min_bytes": -1}}, "policy.retain.min_bytes", "it is not negative; null is unlimited"),
        ({"retain": {"min_bytes": 1.5}}, "policy.retain.min_bytes", "it is a whole number"),
        ({"retain": {"max_bytes": 2**63}}, "policy.retain.max_bytes", "it is implausibly large; null is unlimited"),
        ({"retain": {"max_age_s": 1e300}}, "policy.retain.max_age_s", "it is implausibly large; null is unlimited"),
        ({"retain": {"combine": "or"}}, "policy.retain.combine", "it is one of the accepted words"),
        ({"retain": {"combine": []}}, "policy.retain.combine", "it is one of the accepted words"),
        (
            {"retain": {"measure": None}},
            "policy.retain.measure",
            "it cannot be unlimited; leave it out for the next level's value",
        ),
        ({"backlog": {"ttl_s": 0}}, "policy.backlog.ttl_s", "it is more than 0; null lifts the limit"),
        ({"idle": {"subscriber_s": 0}}, "policy.idle.subscriber_s", "it is more than 0; null lifts the limit"),
        ({"backlog": {"evict_to": 0}}, "policy.backlog.evict_to", "it is a share above 0 and up to 1"),
        ({"backlog": {"evict_to": 1.1}}, "policy.backlog.evict_to", "it is a share above 0 and up to 1"),
        ({"grace_s": None}, "policy.grace_s", "it cannot be unlimited; leave it out for the next level's value"),
    ],
)
def test_each_bad_value_is_refused_with_field_value_rule_and_what_would_do(body: Any, field: str, rule: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        codec.decode_document(body)
    fields = caught.value.fields
    assert (fields["field"], fields["rule"]) == (field, rule)
    assert fields["accepted"]
    assert len(fields["value"]) <= 60


def test_the_path_of_a_field_begins_where_the_caller_says() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        codec.decode_document({"grace_s": "x"}, path="body.")
    assert caught.value.fields["field"] == "body.grace_s"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(codec.FIELDS), JSON)
def test_no_value_of_any_field_escapes_as_another_error(item: codec.Field, value: Any) -> None:
    body = {item.section: {item.name: value}} if item.section else {item.name: value}
    with contextlib.suppress(InvalidArgumentError):
        assert codec.encode_document(codec.decode_document(body)).keys() <= body.keys()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"version":2,"whatever":1}', VersionTooNewError),
        (b"", CorruptDataError),
        (b"\xff\xfe", CorruptDataError),
        (b"[" * 100_000, CorruptDataError),
        (b"[]", CorruptDataError),
        (b"{}", CorruptDataError),
        (b'{"version":0}', CorruptDataError),
        (b'{"version":"1"}', CorruptDataError),
        (b'{"version":1,"retain":{"min_bytes":-1}}', CorruptDataError),
        (b'{"version":1,"retian":{}}', CorruptDataError),
    ],
)
def test_stored_bytes_that_are_no_document_are_told_from_newer_ones(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        codec.unpack_document(data, where="s/a")
    assert caught.value.fields["where"] == "s/a"  # type: ignore[attr-defined]


@given(st.binary(max_size=60))
def test_stored_rubbish_never_passes_for_a_policy(data: bytes) -> None:
    with pytest.raises((CorruptDataError, VersionTooNewError)):
        codec.unpack_document(data)


STREAM = StreamName("s", "a")
HOLDS = [
    HoldInfo(id="a", scope="s", stream=None, owner="o", reason="r", created_ms=1),
    HoldInfo(
        id="b", scope="s", stream=STREAM, owner="Ö", reason="", created_ms=0, until_ms=9,
        cut=StreamCut(STREAM, {make_segment_id(0, 0): 7}),
    ),
]  # fmt: skip


@pytest.mark.parametrize("hold", HOLDS, ids=["scope", "stream"])
def test_a_hold_comes_back_as_it_went(hold: HoldInfo) -> None:
    assert codec.decode_hold(json.loads(json.dumps(codec.encode_hold(hold)))) == hold
    assert codec.unpack_hold(codec.pack_hold(hold)) == hold


@pytest.mark.parametrize("name", ["id", "scope", "stream", "owner", "reason", "created_ms", "until_ms", "cut"])
@pytest.mark.parametrize("value", [7.5, True, [], "x" * 99])
def test_a_damaged_hold_is_told(name: str, value: Any) -> None:
    body = codec.encode_hold(HOLDS[1])
    if isinstance(value, str) and name in ("id", "scope", "owner", "reason"):
        value = None
    with pytest.raises(InvalidArgumentError):
        codec.decode_hold({**body, name: value})
    with pytest.raises(CorruptDataError):
        codec.unpack_hold(json.dumps({"version": 1, **body, name: value}).encode(), where="hold/s/b")


def test_a_newer_hold_is_told_from_a_damaged_one() -> None:
    with pytest.raises(VersionTooNewError):
        codec.unpack_hold(b'{"version":2}')
