"""The data dictionary: every kind of row, with its key, its value, who writes it, and what deletes it.

``codec.control.dictionary`` has the rows of the controller's table, ``codec.store.dictionary`` those of the containers,
``codec.files`` files and segments. ``make docs`` generates docs/formats/metadata.md from them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import TypeVar

from penstock.model.values.dataclass import dataclass

TYPES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q", "32 bytes": "32s"}
"""Types of binary fields, as ``struct`` names them. All are big-endian; ``u`` is unsigned, ``i`` signed."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A value of fixed fields, followed by ``rest``, which fills the row to its end.

    ``fields``: type and meaning of each, in order. The same list packs the bytes and documents them.
    """

    name: str
    fields: Sequence[tuple[str, str]]
    rest: str = ""
    notes: str = ""

    def struct(self, count: int | None = None) -> struct.Struct:
        """The struct of the fields, or of the first ``count``: earlier versions have fewer."""
        return struct.Struct(">" + "".join(TYPES[kind] for kind, _ in self.fields[:count]))


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonValue:
    """A JSON object: name, type and meaning of each field."""

    name: str
    fields: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A kind of row.

    Args:
        key: Form of the key; parts in braces are explained in the table that the entry belongs to.
        value: The record type, the layout, or a description of the contents.
        one_for: There is one row for each of these.
        writers: Modules that write it, below ``penstock``.
        ends: What deletes it, and when.
    """

    key: str
    value: type | Layout | str
    one_for: str
    writers: tuple[str, ...]
    ends: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a key: the pattern of its text, and its meaning."""

    pattern: str
    meaning: str


E = TypeVar("E", bound=Entry)


def key_pattern(entry: Entry, parts: dict[str, Part]) -> re.Pattern[str]:
    """The pattern of an entry's complete keys. Raises KeyError for a part that is not explained."""
    texts = re.split(r"\{([^}]*)\}", entry.key)
    pattern = "".join(parts[text].pattern if odd % 2 else re.escape(text) for odd, text in enumerate(texts))
    return re.compile(pattern, re.DOTALL)


def entries_of(key: str, entries: Iterable[E], parts: dict[str, Part]) -> list[E]:
    """The entries that match a key: exactly one if the dictionary is complete and has no surplus entries."""
    return [entry for entry in entries if key_pattern(entry, parts).fullmatch(key)]
