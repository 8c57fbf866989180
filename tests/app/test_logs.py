"""A log line carries its fields."""

import logging

from penstock.app.logs import FieldsFormatter


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
