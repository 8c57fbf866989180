"""``python -m tests.crash.processing ADDRESS NAME``: copy ``s/in`` to ``s/out`` and ``s/odd``, in transactions, until killed."""

from __future__ import annotations

import random
import sys
from contextlib import suppress

import penstock
from penstock.model.errors import NotCommittedError, ReaderFencedError, UnavailableError

OUT = ("s/out", "s/odd")
LEASE_S, REFRESH_S = 2.0, 0.3


def copy_some(reader: penstock.GroupReader, most: int) -> None:
    """Copy up to ``most`` events in one transaction."""
    with reader.transaction(*OUT) as transaction:
        for _ in range(most):
            event = reader.read(timeout_s=0.2)
            if event is None:
                break
            key, number = event.data.decode().split(":")
            transaction.write(event.data, key=key, to=OUT[int(number) % 2])


def main(address: str, name: str) -> None:
    rng = random.Random(name)
    while True:
        with suppress(UnavailableError, NotCommittedError, ReaderFencedError), penstock.connect(address) as store:
            group = store.open_reader_group("s/g", lease_s=LEASE_S, refresh_s=REFRESH_S)
            with group.reader(name, auto_commit=False) as reader:
                while True:
                    copy_some(reader, rng.randrange(1, 30))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
