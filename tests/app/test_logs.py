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
