"""The log format of a server: a constant message, then its fields as ``name=value``, with secrets in URLs hidden."""

from __future__ import annotations

import logging

from penstock.model.redaction import redacted

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))}
"""Names come from peers: a line end in one must not start a new log line, and no name may move a terminal's cursor."""


class FieldsFormatter(logging.Formatter):
    """Appends what a call gave as ``extra`` to its line."""

    def __init__(self, process: str = "") -> None:
        """``process`` is part of each line, if several processes write to one file."""
        super().__init__(f"%(asctime)s %(levelname)s {process + ' ' if process else ''}%(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name logging calls
        fields = " ".join(f"{name}={value}" for name, value in record.__dict__.items() if name not in _OWN)
        line = super().formatMessage(record)
        return _plain(f"{line}  {fields}" if fields else line)


def _plain(line: str) -> str:
    return line.translate(_CONTROL).encode("utf-8", "backslashreplace").decode()


def log_to_stderr(process: str = "") -> None:
    """Send all records from INFO on to standard error, each with the name of the process where it has one."""
    handler = logging.StreamHandler()
    handler.setFormatter(FieldsFormatter(process))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
