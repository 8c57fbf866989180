"""Decide how long a segment remembers a writer's last event number, so that forgetting it never stores an event twice.

The ids of our own writers hold the time of their birth, and a mark. The store keeps a floor: it forgets an id only
together with raising the floor above its birth, and refuses each id below the floor that it does not know. So such an id is
known, new, or refused, whatever the clocks show. Other clients draw random ids: UUIDs, or any 128 bits. They repeat an
append for minutes, and their numbers are kept for a month of silence. The store's own fixed ids are never forgotten.
Source: docs/design/0027-writers-numbers.md.
"""

from __future__ import annotations

from uuid import UUID

BORN_KEPT_MS = 7 * 86_400_000
"""Silence after which an id that holds its birth may be forgotten, milliseconds."""

RANDOM_KEPT_MS = 30 * 86_400_000
"""Silence after which a random id is forgotten, milliseconds. Pravega's Java client repeats an append for two minutes."""

RENEW_AFTER_S = 86_400.0
"""A writer of ours that was silent for so long continues under a new id, seconds: long before the old one is forgotten."""

FIXED_IDS = 0x50_45_4E_53_54_4F_43_4B
"""High 64 bits, ``PENSTOCK``, of the ids under which the store itself writes, at each start the same: the audit's."""

_BORN_BITS = 48
_MARK_MASK = 0xFFFF << 64 | 3 << 62 | 0xFFFF  # bits of an id that the mark and the version occupy
_MARK = 0x7A5E << 64 | 2 << 62 | 0x70E5
"""Version, variant and 28 bits of our own. Of 2**34 random ids one looks like ours, and may be refused for its birth.
UUIDs of version 7 that others draw have the version and the variant, so these alone would not do."""


def born_writer(random: UUID, born_ms: int) -> UUID:
    """An id that holds its birth, in milliseconds since the Unix epoch, and 46 of the low 62 bits of ``random``."""
    born_ms = min(max(born_ms, 0), (1 << _BORN_BITS) - 1)
    # Python before 3.14 makes no UUIDs of version 7, which this is too.
    drawn = random.int & ((1 << 62) - 1) & ~_MARK_MASK
    return UUID(int=born_ms << 80 | drawn | _MARK)


def born_ms(writer: int) -> int | None:
    """The birth that an id of ours holds, in milliseconds since the Unix epoch; None for any other id."""
    return writer >> 80 if writer & _MARK_MASK == _MARK else None


def is_refused(writer: int, floor_ms: int) -> bool:
    """Whether an id that the segment does not know may be one that it has forgotten, and whose events it may hold."""
    born = born_ms(writer)
    return born is not None and born < floor_ms


def may_forget(writer: int, *, silent_ms: int, now_ms: int) -> bool:
    """Whether a writer's number may be forgotten. Not for attributes: their rows hold no age, and stay.

    Args:
        silent_ms: Milliseconds that passed since its last append, by a clock that nobody sets.
        now_ms: Wall clock, milliseconds since the Unix epoch. It bounds the floor: an id with a birth less than
            ``BORN_KEPT_MS`` ago is kept, because a floor above that birth would refuse new writers.
    """
    born = born_ms(writer)
    if born is not None:
        return silent_ms >= BORN_KEPT_MS and born + BORN_KEPT_MS <= now_ms
    return writer >> 64 != FIXED_IDS and silent_ms >= RANDOM_KEPT_MS
