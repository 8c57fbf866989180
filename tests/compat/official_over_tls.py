"""The official Pravega Python client over TLS, as a process of its own:

    pravega_client_tls_cert_path=DIRECTORY python official_over_tls.py HOST:PORT

Prints what it read. With the variables ``pravega_client_auth_*`` it also shows credentials.
"""

import asyncio
import json
import os
import sys

import pravega_client


def main():
    manager = pravega_client.StreamManager(f"tls://{sys.argv[1]}", "pravega_client_auth_method" in os.environ, True)
    manager.create_scope("tls")
    manager.create_stream("tls", "st", 2)
    writer = manager.create_writer("tls", "st")
    for number in range(50):
        writer.write_event(f"event {number}", routing_key=str(number))
    writer.flush()
    transactions = manager.create_transaction_writer("tls", "st", 7)
    transaction = transactions.begin_txn()
    transaction.write_event("in a transaction")
    transaction.commit()
    reader = manager.create_reader_group("rg", "tls", "st").create_reader("r1")

    async def read():
        found = []
        while len(found) < 51:
            part = await asyncio.wait_for(reader.get_segment_slice_async(), 40)
            found += [bytes(event.data()).decode() for event in part]
            reader.release_segment(part)
        return found

    print(json.dumps(sorted(asyncio.run(read()))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
