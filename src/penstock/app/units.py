"""Sizes and durations as people write them: ``512MiB``, ``10MB``, ``1s``, ``7d``."""

from __future__ import annotations

import re

from penstock.model.errors import InvalidArgumentError

_SIZES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_DURATIONS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
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


def counted(count: int, noun: str) -> str:
    """``1 event``, ``1,234 events``, ``2 entries``."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{count:,} {plural}"
