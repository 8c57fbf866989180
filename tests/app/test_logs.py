"""A log line carries its fields."""

import json
import logging
import sys

from penstock.app.logs import FieldsFormatter, JsonFormatter
from penstock.model.callers import Caller, calling, unattributed
from penstock.model.identity import Identity
from penstock.model.traces.spans import SpanContext, install


def test_fields_follow_the_message():
    record = logging.makeLogRecord(
        {"name": "penstock.x", "levelname": "INFO", "msg": "it closed", "peer": "a:1", "n": 3}
    )
    assert FieldsFormatter().format(record).endswith("INFO penstock.x it closed  peer=a:1 n=3")
    plain = logging.makeLogRecord({"name": "penstock.x", "levelname": "INFO", "msg": "done"})
    assert FieldsFormatter().format(plain).endswith("penstock.x done")


def test_a_name_from_a_peer_writes_no_line_of_its_own_and_breaks_no_terminal():
    name = "s/t\n2026-01-01 00:00:00,000 ERROR penstock all data is gone\r\x1b[2J\udcff"
    record = logging.makeLogRecord({"name": "penstock.x", "levelname": "INFO", "msg": "it closed", "segment": name})
    line = FieldsFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert line.endswith(r"s/t\x0a2026-01-01 00:00:00,000 ERROR penstock all data is gone\x0d\x1b[2J\udcff")
    assert line.encode()


def as_json(**fields: object) -> dict:
    record = logging.makeLogRecord({"name": "penstock.x", "levelname": "WARNING", "created": 1.0625} | fields)
    line = JsonFormatter("worker-1").format(record)
    assert len(line.splitlines()) == 1
    assert line.isascii()
    return json.loads(line)


def test_a_line_of_json_names_the_request_and_its_caller():
    assert as_json(msg="it closed %s", args=("now",), peer="a:1", n=3, part=0.5, odd=float("nan")) == {
        "time": "1970-01-01T00:00:01.062Z",
        "level": "warning",
        "logger": "penstock.x",
        "process": "worker-1",
        "message": "it closed now",
        "fields": {"peer": "a:1", "n": 3, "part": 0.5, "odd": "nan"},
    }
    caller = Caller(who="ann", via="grpc", peer="10.0.0.7", identity=Identity(name="svc-a", proof="password"))
    with calling(caller, "streams.create"):
        line = as_json(msg="it failed")
        with unattributed():
            assert as_json(msg="something else").keys() & {"caller", "request"} == set()
    assert line["request"] == "streams.create"
    assert line["caller"] == {"who": "ann", "via": "grpc", "peer": "10.0.0.7", "identity": "svc-a"}


def test_a_line_of_json_names_the_span():
    class Fixed:
        """A tracer whose current span is always the same."""

        def current(self):
            return SpanContext(0xABC, 0xDEF, sampled=True)

    install(Fixed())
    try:
        line = as_json(msg="it failed")
    finally:
        install(None)
    assert (line["trace_id"], line["span_id"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")
    assert as_json(msg="it failed").keys() & {"trace_id", "span_id"} == set()


def test_a_line_of_json_holds_the_traceback_and_any_text():
    try:
        raise ValueError("bad\nname")
    except ValueError:
        line = as_json(msg="it failed", exc_info=sys.exc_info(), segment="s/t\n\x1b[2J\udcff")
    assert "ValueError: bad\nname" in line["traceback"]
    assert line["fields"]["segment"] == "s/t\n\x1b[2J\\udcff"
