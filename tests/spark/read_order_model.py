"""Random histories of splits, merges, writes, truncations and restarts, read by readers of all kinds.

    python tests/spark/read_order_model.py --histories 10000
    python tests/spark/read_order_model.py --histories 1000 --first 123456

The Python reader, a reader group, batch reads, the streaming source and Java's rule must give the same order for each key. Prints
how many histories ran; fails with the seed of the first in which they do not.
"""

from __future__ import annotations

import argparse
import asyncio

from order_world import play


async def histories(first: int, count: int) -> None:
    for seed in range(first, first + count):
        await play(seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=10_000, help="how many (10000)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one (0)")
    given = parser.parse_args()
    asyncio.run(histories(given.first, given.histories))
    print(f"{given.histories} histories, seeds {given.first} to {given.first + given.histories - 1}: one order")


if __name__ == "__main__":
    main()
