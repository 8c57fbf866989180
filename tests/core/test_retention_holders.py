"""Every holder that the planner names has words."""

from penstock.core.retention_facts import HolderKind, holder_in_words


def test_every_kind_has_words_or_a_name():
    named = {HolderKind.SUBSCRIBER, HolderKind.HOLD}
    for kind in HolderKind:
        if kind not in named:
            assert holder_in_words(kind.value) != kind.value
    assert holder_in_words("subscriber a/b") == "subscriber a/b"
