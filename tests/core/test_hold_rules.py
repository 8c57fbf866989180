"""Which requests to place or release a hold are legal."""

from __future__ import annotations

import pytest

from penstock.core.policies.hold_rules import ID_MAX, OWNER_MAX, REASON_MAX, check_hold, check_release
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX

NOW_MS = 1_700_000_000_000
STREAM = StreamName("a", "s")
LEGAL = {"owner": "legal", "reason": "case 7", "until_ms": None, "cut": None, "hold_id": None, "now_ms": NOW_MS}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"owner": "ö" * OWNER_MAX, "reason": "r" * REASON_MAX},
        {"hold_id": "A.b_c-9"},
        {"hold_id": "i" * ID_MAX},
        {"until_ms": NOW_MS + 1},
        {"until_ms": LONG_MAX},
        {"cut": StreamCut(STREAM, {})},
    ],
)
def test_a_hold_within_its_bounds_is_legal(given):
    check_hold(STREAM, **LEGAL | given)


@pytest.mark.parametrize(
    ("target", "field", "given"),
    [
        *((STREAM, "owner", {"owner": text}) for text in ("", " ", "a\nb", "\ud800", "o" * (OWNER_MAX + 1), None, 7)),
        *((STREAM, "reason", {"reason": text}) for text in ("", "\x1b[2J", "r" * (REASON_MAX + 1))),
        *((STREAM, "hold_id", {"hold_id": text}) for text in ("", "a/b", "a\n", "ö", "i" * (ID_MAX + 1))),
        *((STREAM, "until_ms", {"until_ms": at}) for at in (-1, 0, NOW_MS, LONG_MAX + 1)),
        ("a", "cut", {"cut": StreamCut(STREAM, {})}),
        (StreamName("a", "_RGgroup"), "stream", {}),
    ],
)
def test_a_hold_beyond_its_bounds_is_refused_by_field(target, field, given):
    with pytest.raises(InvalidArgumentError) as refusal:
        check_hold(target, **LEGAL | given)
    assert refusal.value.fields["field"] == field


@pytest.mark.parametrize("owner", ["", "\t", "\ud800", "o" * (OWNER_MAX + 1)])
def test_a_release_has_an_owner(owner):
    check_release("legal")
    with pytest.raises(InvalidArgumentError) as refusal:
        check_release(owner)
    assert refusal.value.fields["field"] == "owner"
