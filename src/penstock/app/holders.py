"""Who holds a stream's head, in words."""

from __future__ import annotations

_WORDS = {
    "due": "nobody, it goes with the next cycle",
    "minimum": "the retention minimum",
    "no-policy": "no retention policy, so all is kept",
    "truncating": "nobody, a truncation is under way",
    "unrecorded": "the retention minimum, to the nearest recorded cut",
    "": "nobody, the stream is empty",
}


def holder_in_words(held_by: str) -> str:
    """``StreamDescription.held_by`` as people say it: subscribers and holds go by their name."""
    return _WORDS.get(held_by, held_by)
