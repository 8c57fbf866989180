"""Key-value tables of the blocking client."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.client.blocking.derived import Blocking, blocking
from penstock.client.tables.entries import Entry, KeyPart
from penstock.client.tables.table import AsyncTable
from penstock.model.names import StreamName


class Table(Blocking[AsyncTable]):
    """One key-value table by name. Making one does no I/O; calls raise TableNotFoundError where there is no such table.

    A key is a primary key, or a pair of primary and secondary key; text is UTF-8. Keys have the lengths of the table
    (``config``). Each change is durable when its call returns, and gives the key a larger version.

    Changes are repeated while the store cannot be reached. A ``put`` or an unconditional ``remove`` may then be applied
    twice. If it is not known whether a conditional change was made, NotConnectedError says so: read the key again.
    After a table was deleted and created again with other partitions, make a new object.
    """

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def name(self) -> StreamName:
        """Scope and name; its text is ``scope/table``."""
        return self._inner.name

    config = blocking(AsyncTable.config)
    exists = blocking(AsyncTable.exists)
    delete = blocking(AsyncTable.delete)
    get = blocking(AsyncTable.get)
    get_many = blocking(AsyncTable.get_many)

    def scan(
        self, *, first: KeyPart | None = None, last: KeyPart | None = None, primary: KeyPart | None = None
    ) -> Iterator[Entry]:
        """Entries in the order of their keys' bytes, those of all partitions together.

        ``first`` and ``last`` are the bounds, both inclusive: primary keys or, with ``primary``, secondary keys of that
        primary key. None: no bound. An entry that stays during the scan is never missed; what changes meanwhile may or
        may not be seen. Raises InvalidArgumentError (a key of another length), CorruptDataError.
        """
        pages = self._inner.pages(first=first, last=last, primary=primary)

        def entries() -> Iterator[Entry]:
            while page := self._thread.call(pages.next_page()):
                yield from page

        return entries()

    put = blocking(AsyncTable.put)
    insert = blocking(AsyncTable.insert)
    replace = blocking(AsyncTable.replace)
    remove = blocking(AsyncTable.remove)
    update = blocking(AsyncTable.update)
    remove_many = blocking(AsyncTable.remove_many)
