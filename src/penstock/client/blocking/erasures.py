"""The blocking API of erasures: the same names as ``penstock.client.erasure``, no ``await``."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.client.blocking.derived import Blocking, blocking
from penstock.client.cases import AsyncCases
from penstock.client.erasure import AsyncErasures
from penstock.model.answers.erasure import Erasure, ErasureCase


class Erasures(Blocking[AsyncErasures]):
    """Erasures of a stream, or all of the store, with their receipts. Iterating lists them."""

    list = blocking(AsyncErasures.list)

    def __iter__(self) -> Iterator[Erasure]:
        return iter(self.list())

    show = blocking(AsyncErasures.show)
    wait = blocking(AsyncErasures.wait)
    confirm_table = blocking(AsyncErasures.confirm_table)
    offsets = blocking(AsyncErasures.offsets)
    withdraw = blocking(AsyncErasures.withdraw)
    verify = blocking(AsyncErasures.verify)


class Cases(Blocking[AsyncCases]):
    """All cases of a store. Iterating lists them."""

    list = blocking(AsyncCases.list)

    def __iter__(self) -> Iterator[ErasureCase]:
        return iter(self.list())

    open = blocking(AsyncCases.open)
    show = blocking(AsyncCases.show)
    look = blocking(AsyncCases.look)
    wait = blocking(AsyncCases.wait)
    close = blocking(AsyncCases.close)
    confirm_table = blocking(AsyncCases.confirm_table)
    withdraw = blocking(AsyncCases.withdraw)
    subject = blocking(AsyncCases.subject)
    ledger = blocking(AsyncCases.ledger)
