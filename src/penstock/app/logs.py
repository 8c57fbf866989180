"""How a server logs: a constant message, then its fields as ``name=value``."""

from __future__ import annotations

import logging

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class FieldsFormatter(logging.Formatter):
    """Appends what a call gave as ``extra`` to its line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name logging calls
        fields = " ".join(f"{name}={value}" for name, value in record.__dict__.items() if name not in _OWN)
        line = super().formatMessage(record)
        return f"{line}  {fields}" if fields else line


def log_to_stderr() -> None:
    """Send all records from INFO on to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(FieldsFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
