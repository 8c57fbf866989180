"""Events that become readable together, or not at all: ``python examples/transactions.py``."""

from __future__ import annotations

import tempfile

import penstock

with tempfile.TemporaryDirectory() as directory, penstock.open(directory) as store:
    stream = store.create_stream("demo/ledger", create_scope=True)

    with stream.transaction() as transfer:
        transfer.write("debit alice 10", key="alice")
        transfer.write("credit bob 10", key="bob")

    try:
        with stream.transaction() as refused:
            refused.write("debit alice 1000", key="alice")
            raise ValueError("not enough money")
    except ValueError as error:
        print("aborted:", error)

    with stream.reader(until_tail=True) as reader:
        print([event.data.decode() for event in reader])
