"""Records as columns: very many records of whole numbers without an object for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class Records(Sequence[T], Generic[T]):
    """Records of one type, in order. A record is made when it is asked for.

    Equal to every sequence with equal records.
    """

    __slots__ = ("_columns", "_kind", "_size")

    def __init__(self, kind: type[T], columns: Mapping[str, Sequence[Any]]) -> None:
        """``columns``: the values of each field; fields without a column have their default. Not copied.

        Raises ValueError if the columns have different lengths.
        """
        sizes = {len(column) for column in columns.values()}
        if len(sizes) != 1:
            raise ValueError(f"columns of {kind.__name__} have different lengths")
        self._kind = kind
        self._columns = columns
        self._size = sizes.pop()

    def column(self, name: str) -> Sequence[Any]:
        """The values of one field."""
        found = self._columns.get(name)
        return [getattr(record, name) for record in self] if found is None else found

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Records[T]: ...
    def __getitem__(self, index: int | slice) -> T | Records[T]:
        found = {name: column[index] for name, column in self._columns.items()}
        return Records(self._kind, found) if isinstance(index, slice) else self._kind(**found)

    def __iter__(self) -> Iterator[T]:
        names = tuple(self._columns)
        for row in zip(*self._columns.values(), strict=True):
            yield self._kind(**dict(zip(names, row, strict=True)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Records({self._kind.__name__}, {self._size})"


def column(records: Sequence[Any], name: str) -> Sequence[Any]:
    """The values of one field of any records."""
    return records.column(name) if isinstance(records, Records) else [getattr(record, name) for record in records]
