"""Plain values of the planner's JSON, each checked, with an error that names the path of the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import LONG_MAX
from penstock.model.segments import SegmentId, make_segment_id


def refuse(message: str, field: str | None, **fields: Any) -> NoReturn:
    """Raise InvalidArgumentError with the path of the field."""
    raise InvalidArgumentError(message, field=field, **fields)


def check_known(value: Mapping[str, Any], names: Sequence[str], prefix: str) -> None:
    """Refuse unknown field names: a misspelt field must not count as absent."""
    for name in value:
        if name not in names:
            refuse("field is not known", f"{prefix}{name}")


def take_object(value: Any, field: str | None) -> dict[str, Any]:
    if type(value) is dict:
        return value
    result: dict[str, Any] = _typed(lambda item: isinstance(item, dict), "an object", value, field)
    return result


def take_list(value: Any, field: str) -> list[Any]:
    if type(value) is list:
        return value
    result: list[Any] = _typed(lambda item: isinstance(item, list), "a list", value, field)
    return result


def take_text(value: Any, field: str) -> str:
    if type(value) is str:
        return value
    result: str = _typed(lambda item: isinstance(item, str), "a text", value, field)
    return result


def take_flag(value: Any, field: str) -> bool:
    if value is True or value is False:
        return value
    result: bool = _typed(lambda item: isinstance(item, bool), "true or false", value, field)
    return result


def take_number(value: Any, field: str) -> float:
    return float(_typed(lambda i: isinstance(i, (int, float)) and not isinstance(i, bool), "a number", value, field))


def take_whole(value: Any, field: str, *, least: int = 0) -> int:
    """A whole number of 63 bits, not below ``least``, which is 0 or -1."""
    if type(value) is int and least <= value <= LONG_MAX:
        return value
    number: int = _typed(lambda i: isinstance(i, int) and not isinstance(i, bool), "a whole number", value, field)
    if number < least:
        refuse("number is negative" if least == 0 else f"offset is less than {least}", field, value=number)
    if number > LONG_MAX:
        refuse("number does not fit into 63 bits", field, value=number)
    return number


def take_optional(value: Any, field: str) -> int | None:
    """As ``take_whole``, or None for null."""
    return None if value is None else take_whole(value, field)


def take_segment(value: Any, field: str) -> SegmentId:
    """A segment written ``NUMBER#EPOCH``."""
    number, mark, epoch = take_text(value, field).partition("#")
    if not mark or not _digits(number) or not _digits(epoch):
        refuse("a segment is written NUMBER#EPOCH", field, segment=str(value)[:60])
    if int(number) >= 1 << 31 or int(epoch) >= 1 << 31:
        refuse("number or epoch of a segment does not fit into 31 bits", field, segment=value)
    return make_segment_id(int(epoch), int(number))


def _typed(test: Callable[[Any], bool], wanted: str, value: Any, field: str | None) -> Any:
    if value is None:
        refuse(f"{wanted} is missing", field)
    if not test(value):
        refuse(f"not {wanted}", field, value=repr(value)[:60])
    return value


def _digits(text: str) -> bool:
    return 0 < len(text) <= 10 and text.isascii() and text.isdigit()
