"""Tables and streams of bytes that Pravega's Java client and our own both read and change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from java_client import JavaClient

import penstock
from penstock.model.errors import BadKeyVersionError

pytestmark = [pytest.mark.server, pytest.mark.java]


def test_each_client_reads_and_changes_the_tables_of_the_other(client: JavaClient) -> None:
    with penstock.connect(client.server.address) as store:

        def written(_: Mapping[str, Any]) -> str:
            theirs = store.table("java-shared-tables/java")
            config = theirs.config()
            assert (config.partitions, config.primary_key_bytes, config.secondary_key_bytes) == (5, 8, 2)
            entries = list(theirs.scan())
            assert [(entry.key, entry.value) for entry in entries] == [
                ((b"java%04d" % number, b"01"), b"j%d" % number) for number in range(40)
            ]
            # Found by key, not only by a scan: each lies in the partition that its hash chooses.
            assert theirs.get_many([entry.key for entry in entries]) == entries
            theirs.replace(entries[0].key, b"from python", entries[0].version)
            with pytest.raises(BadKeyVersionError):
                theirs.insert(entries[1].key, b"x")
            theirs.insert((b"java0001", b"02"), b"short-lived")
            theirs.remove((b"java0001", b"02"))
            own = store.create_table("java-shared-tables/python", primary_key_bytes=6, partitions=3)
            for number in range(40):
                own.insert(b"py%04d" % number, b"p%d" % number)
            return "go on"

        assert client.run("shared-tables", written) == {
            "values": ["from python", *(f"j{number}" for number in range(1, 40))],
            "replaced": "BadKeyVersionException",
            "removed": None,
            "found": [f"p{number}" for number in range(40)],
            "keys": 40,
            "insert_again": "BadKeyVersionException",
        }
        own = store.table("java-shared-tables/python")
        first = own.get("py0000")
        assert first is not None
        assert first.value == b"from java"
        assert own.get("py0039") is None
        assert store.tables("java-shared-tables") == ["java", "python"]


def test_each_client_continues_the_bytes_of_the_other(client: JavaClient) -> None:
    with penstock.connect(client.server.address) as store:
        file = store.byte_stream("java-shared-bytes/st")

        def step(asked: Mapping[str, Any]) -> str:
            if asked["step"] == "written":
                assert file.read() == b"from java;"
                file.write(b"from python;")
                file.flush()
            else:
                assert file.head() == 10
                file.seek(file.head())
                assert file.read() == b"from python;java again;"
                file.write(b"end")
                file.seal()
            return "go on"

        assert client.run("shared-bytes", step) == {
            "head": 0,
            "text": "java;from python;",
            "tail": 36,
            "rest": 14,
        }
