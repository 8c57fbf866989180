"""A span is named to other processes as W3C Trace Context demands, and without a tracer nothing is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.traces import spans as traces
from penstock.model.traces.spans import ROOT, SpanContext, context_of_bytes, context_of_header

contexts = st.builds(
    SpanContext,
    st.integers(1, (1 << 128) - 1),
    st.integers(1, (1 << 64) - 1),
    st.booleans(),
)
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@given(contexts)
def test_a_context_survives_both_forms(context):
    assert context_of_header(context.to_header()) == context
    assert context_of_bytes(context.to_bytes()) == context


def test_a_context_has_the_form_of_the_standard():
    context = context_of_header(GIVEN, "vendor=1")
    assert context.to_header() == GIVEN
    assert (context.sampled, context.state) == (True, "vendor=1")
    assert context.to_bytes().hex() == "010af7651916cd43dd8448eb211c80319cb7ad6b716920333101"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        GIVEN.upper(),
        GIVEN + "-more",
        "ff" + GIVEN[2:],
        GIVEN.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        GIVEN.replace("b7ad6b7169203331", "0" * 16),
        GIVEN.replace("-01", "-0x"),
    ],
)
def test_a_text_that_names_no_span_begins_a_new_trace(text):
    assert context_of_header(text) == ROOT


def test_a_later_version_may_hold_more():
    assert context_of_header("01" + GIVEN[2:] + "-more") == context_of_header(GIVEN)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_context_or_none(data):
    context = context_of_bytes(data)
    assert context is None or context.to_bytes()[:25] == data[:25]


def test_without_a_tracer_there_is_no_span():
    assert traces.active() is None
    assert traces.current_headers() == ()
    with traces.spanning("work") as span, traces.apart():
        span.set("name", 1)
        assert traces.current() is None
        assert span.context == ROOT
