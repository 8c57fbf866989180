"""Every holder that the planner names has words."""

from penstock.core.retention.facts import HolderKind, RetentionRule, holder_in_words


def test_every_kind_has_words_or_a_name():
    named = {HolderKind.SUBSCRIBER, HolderKind.HOLD, HolderKind.LOCK}
    for kind in HolderKind:
        if kind not in named:
            assert holder_in_words(kind.value) != kind.value
    assert holder_in_words("subscriber a/b") == "subscriber a/b"


def test_every_rule_that_takes_what_is_not_read_has_words():
    """Bytes that are due go by the name of the rule, behind the kind."""
    taking = ("ttl", "backlog-bytes", "backlog-events", "backlog-age", "idle-subscriber", "subscribers-maximum")
    for rule in (*taking, "overlap-maximum"):
        assert RetentionRule(rule)
        assert "next cycle" in holder_in_words(f"due {rule}")
