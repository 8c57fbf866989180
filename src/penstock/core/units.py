"""Sizes and durations as people write them: ``512MiB``, ``10MB``, ``1s``, ``7d``."""

from __future__ import annotations

import re

from penstock.model.errors import InvalidArgumentError

_UNITS_OF_SIZE = (
    ("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3),
    ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10),
)  # fmt: skip
_SIZES = {
    "": 1,
    "b": 1,
    **{unit.lower(): size for unit, size in _UNITS_OF_SIZE},
    **{unit[0].lower(): size for unit, size in _UNITS_OF_SIZE if unit.endswith("iB")},
}
_DURATIONS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNITS_OF_DURATION = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


def parse_size(text: str) -> int:
    """Bytes in ``text``: a number with B, kB, MB, GB, TB (powers of 1000) or k, m, g, t, KiB, MiB, GiB, TiB (powers of 1024).

    Raises InvalidArgumentError for anything else, negative sizes included.
    """
    match = _QUANTITY.match(text)
    if match is None or match[2].lower() not in _SIZES:
        raise InvalidArgumentError("not a size; write 1000, 64MiB, 10MB or 1.5GB", value=repr(text))
    return (
        round(float(match[1]) * _SIZES[match[2].lower()])
        if "." in match[1]
        else int(match[1]) * _SIZES[match[2].lower()]
    )


def parse_duration_ms(text: str) -> int:
    """Milliseconds in ``text``: a number with ms, s, m, h, d or w. The unit is required: a bare number means nothing.

    Raises InvalidArgumentError for anything else; for ``M`` too, which many read as months.
    """
    match = _QUANTITY.match(text)
    if match is not None and match[2] == "M":
        raise InvalidArgumentError(
            "not a duration: m is minutes, and months are not a unit; write 5m or 150d", value=repr(text)
        )
    if match is None or match[2].lower() not in _DURATIONS_MS:
        raise InvalidArgumentError("not a duration; write 500ms, 30s, 10m, 12h or 7d", value=repr(text))
    return round(float(match[1]) * _DURATIONS_MS[match[2].lower()])


def format_size(size_bytes: float) -> str:
    """``size_bytes`` with three digits and a decimal unit, as in ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size_bytes) < 999.5:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} TB"


def format_duration(duration_ms: float) -> str:
    """``duration_ms`` in its largest fitting unit, as in ``7 d`` or ``1.5 s``."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if duration_ms >= size:
            return f"{duration_ms / size:.3g} {unit}"
    return f"{duration_ms:.3g} ms"


def exact_size(size_bytes: int) -> str:
    """``size_bytes`` without loss, in the unit that says it shortest: ``50 GB``, ``1.5 MiB``, ``1,234,567 B``."""
    exact = [
        f"{_tenths(size_bytes, size)} {unit}"
        for unit, size in _UNITS_OF_SIZE
        if size_bytes >= size and size_bytes * 10 % size == 0
    ]
    return min([*exact, f"{size_bytes:,} B"], key=len)


def exact_duration(duration_ms: int) -> str:
    """``duration_ms`` without loss: ``7 d``, ``1.5 h``, or in parts as ``1 d 2 h 30 min``."""
    if duration_ms == 0:
        return "0 s"
    for unit, size in _UNITS_OF_DURATION:
        if duration_ms >= size and duration_ms * 2 % size == 0:
            return f"{_tenths(duration_ms, size)} {unit}"
        if duration_ms >= size:
            break
    parts = []
    for unit, size in _UNITS_OF_DURATION:
        count, duration_ms = divmod(duration_ms, size)
        if count:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts)


def _tenths(value: int, unit: int) -> str:
    whole, tenth = divmod(value * 10 // unit, 10)
    return f"{whole:,}.{tenth}" if tenth else f"{whole:,}"


def counted(count: int, noun: str) -> str:
    """``1 event``, ``1,234 events``, ``2 entries``."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{count:,} {plural}"
