"""Nodes of a cluster: what is read is what was written, and what cannot be read says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.store.cluster_nodes import (
    Assignment,
    ClusterConfig,
    ControllerEntry,
    Features,
    HeldContainer,
    Requests,
    StoreEntry,
    Term,
    decode_node,
    encode_node,
)
from penstock.model.errors import CorruptDataError, VersionTooNewError

_NAMES = st.text(min_size=1, max_size=20)
_TIMES = st.lists(st.integers(0, 1 << 50), max_size=4).map(tuple)
_NODES = st.one_of(
    st.builds(ClusterConfig, cluster=_NAMES, containers=st.integers(1, 64), ledgers=_NAMES, tier2=_NAMES),
    st.builds(Requests, drained=st.lists(_NAMES, max_size=4).map(tuple)),
    st.builds(
        Assignment,
        owners=st.dictionaries(st.integers(0, 63), _NAMES),
        moved_at_ms=st.integers(0, 1 << 50),
        losses_ms=st.dictionaries(_NAMES, _TIMES),
        known=st.lists(_NAMES, max_size=4).map(tuple),
    ),
    st.builds(StoreEntry, store=_NAMES, clients=_NAMES, links=_NAMES, pid=st.integers(1, 1 << 22)),
    st.builds(
        ControllerEntry, controller=_NAMES, grpc=_NAMES, http=_NAMES, active=st.booleans(), pid=st.integers(1, 1 << 22)
    ),
    st.builds(HeldContainer, store=_NAMES, clients=_NAMES, links=_NAMES, serving=st.booleans()),
    st.builds(Term, term=st.integers(1), controller=_NAMES),
)


@given(_NODES)
def test_a_node_is_read_as_it_was_written(node: object) -> None:
    assert decode_node(type(node), encode_node(node)) == node


@given(_NODES, st.data())
def test_a_damaged_node_is_reported_as_damaged(node: object, data: st.DataObject) -> None:
    whole = encode_node(node)
    with pytest.raises(CorruptDataError):
        decode_node(type(node), whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_fields_of_a_later_version_of_the_same_format_are_ignored() -> None:
    assert decode_node(Term, b'{"format": 1, "term": 3, "controller": "a", "zone": "x"}') == Term(
        term=3, controller="a"
    )


def test_a_newer_format_is_refused_and_says_which() -> None:
    with pytest.raises(VersionTooNewError, match="newer format"):
        decode_node(Term, b'{"format": 2, "term": 3, "controller": "a"}')


_KINDS = st.sampled_from(
    [ClusterConfig, Requests, Assignment, StoreEntry, ControllerEntry, HeldContainer, Term, Features]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("7"), inner, max_size=3),
    max_leaves=6,
)


@given(_KINDS, st.data())
def test_a_node_with_values_of_other_types_is_damaged(kind: type[Any], data: st.DataObject) -> None:
    names = [one.name for one in fields(kind)]
    parts = data.draw(st.dictionaries(st.sampled_from(names), _JSON))
    try:
        node = decode_node(kind, json.dumps({"format": 1, **parts}).encode())
    except CorruptDataError:
        return
    assert repr(decode_node(kind, encode_node(node))) == repr(node)
    for name, hint in get_type_hints(kind).items():
        assert _fits(getattr(node, name), hint), name


def _fits(value: object, hint: Any) -> bool:
    """Whether the value is of that type, with all that is in it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return any(_fits(value, one) for one in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(one, inner[0]) for one in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_fits(a, inner[0]) and _fits(b, inner[1]) for a, b in value.items())
    return type(value) is hint


def test_json_that_is_nested_without_end_is_damaged() -> None:
    with pytest.raises(CorruptDataError):
        decode_node(Requests, b"[" * 100_000)
