"""The log formats of a server, as text or JSON, with secrets hidden.

A line is a constant message with fields. During a request, a line of JSON also names the request and its caller, and
the span if traces are on.
"""

from __future__ import annotations

import enum
import json
import logging
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.model.callers import current_caller, current_request
from penstock.model.redaction import HIDDEN, redacted
from penstock.model.traces.spans import current

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))}
"""Names come from peers: a line end in one must not start a new log line, and no name may move a terminal's cursor."""
_SECRET_FIELD = re.compile(r"secret|token|passw|credential|authorization|cookie|signature|private", re.IGNORECASE)


class LogFormat(enum.StrEnum):
    """How a server writes its log."""

    TEXT = "text"
    JSON = "json"


class FieldsFormatter(logging.Formatter):
    """Appends what a call gave as ``extra`` to its line."""

    def __init__(self, process: str = "") -> None:
        """``process`` is part of each line, if several processes write to one file."""
        super().__init__(f"%(asctime)s %(levelname)s {process + ' ' if process else ''}%(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name logging calls
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        line = super().formatMessage(record)
        return _plain(f"{line}  {fields}" if fields else line)


class JsonFormatter(logging.Formatter):
    """One JSON object for each record, on one line of ASCII."""

    def __init__(self, process: str = "") -> None:
        """``process`` is part of each line, if several processes write to one file."""
        super().__init__()
        self._process = process or "server"

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "message": _value(record.getMessage()),
        }
        fields = {name: _value(value) for name, value in _fields(record).items()}
        caller = current_caller()
        known = {
            "fields": fields,
            "request": _value(current_request()),
            "caller": {} if caller is None else {name: _value(text) for name, text in caller.as_fields().items()},
        }
        line |= {name: found for name, found in known.items() if found}
        span = current()
        if span is not None:
            line |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
        if record.exc_info:
            line["traceback"] = _value(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = _value(record.stack_info)
        return json.dumps(line)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """What a call gave as ``extra``, without secrets."""
    return {
        name: HIDDEN if _SECRET_FIELD.search(name) else value
        for name, value in record.__dict__.items()
        if name not in _OWN
    }


def _value(value: object) -> object:
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return redacted(str(value)).encode("utf-8", "backslashreplace").decode()


def _plain(line: str) -> str:
    return line.translate(_CONTROL).encode("utf-8", "backslashreplace").decode()


def log_to_stderr(process: str = "", form: LogFormat = LogFormat.TEXT) -> None:
    """Send all records from INFO on to standard error, each with the name of the process where it has one."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(process) if form is LogFormat.JSON else FieldsFormatter(process))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
