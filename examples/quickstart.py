"""Write events and read them back, with the store inside this process: ``python examples/quickstart.py``."""

from __future__ import annotations

import tempfile

import penstock

with tempfile.TemporaryDirectory() as directory, penstock.open(directory) as store:
    stream = store.create_stream("demo/sensors", segments=2, create_scope=True)

    with stream.writer() as writer:
        for number in range(10):
            # Events of one key are read in the order in which they were written.
            writer.write(f"reading {number}", key=f"sensor-{number % 3}")

    with stream.reader(until_tail=True) as reader:
        for event in reader:
            print(event.segment, event.offset, event.data.decode())
