"""A reader group as a retention subscriber: data stays until it was read, and goes once it was.

``python examples/reader_group_retention.py``
"""

from __future__ import annotations

import tempfile

import penstock
from penstock.model.policies import RetentionPolicy, RetentionType

with tempfile.TemporaryDirectory() as directory, penstock.open(directory) as store:
    consume = RetentionPolicy(type=RetentionType.SIZE, minimum=0)
    stream = store.create_stream("demo/orders", retention=consume, create_scope=True)

    # Registering publishes the start: from now on nothing goes that the group has not done with.
    group = store.reader_group("billing", ["demo/orders"], retention="manual")

    with stream.writer() as writer:
        writer.write_many([f"order {number}" for number in range(1000)])

    stream.retention.run()
    print("held by the group:", stream.describe().size_bytes, "bytes")

    with group.reader("worker-1") as reader:
        for count, _order in enumerate(reader, start=1):
            if count == 1000:
                break

    group.publish(group.checkpoint())
    stream.retention.run()
    print("left after publication:", stream.describe().size_bytes, "bytes")
