"""The lease of a task's transaction, renewed even while the task waits for rows."""

from __future__ import annotations

import logging
import threading
from uuid import UUID

from penstock.client.retry import RETRYABLE
from penstock.model.errors import PenstockError, TransactionStateError
from penstock.model.names import StreamName
from penstock.ports.control.transactions import PingStatus
from penstock.spark.connect import Connector, Link, Services, patiently

log = logging.getLogger("penstock.spark")


async def renew(services: Services, stream: StreamName, transaction: UUID, lease_ms: int) -> None:
    """Renew the lease once. Raises TransactionStateError if the transaction has ended, and what the controller
    raises."""
    status = await patiently(lambda: services.controller.transactions.ping(stream, transaction, lease_ms=lease_ms))
    if status is not PingStatus.OK:
        raise TransactionStateError(
            "transaction ended while rows were written to it", txn=transaction, state=status.value
        )


class KeepAlive:
    """Renews the leases of a task's transactions three times per period, in a thread with its own connection.

    A task's loop does not run while Spark computes the next rows, which may take longer than any lease. A short task
    costs only an idle thread.
    """

    def __init__(self, connector: Connector, address: str, lease_ms: int) -> None:
        self._connector = connector
        self._address = address
        self._lease_ms = lease_ms
        self._over = threading.Event()
        self._failure: PenstockError | None = None
        self._held: list[tuple[StreamName, UUID]] = []
        self._thread: threading.Thread | None = None

    def hold(self, stream: StreamName, transaction: UUID) -> None:
        """Renew this lease too, until ``stop``."""
        self._held.append((stream, transaction))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-keep-alive", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raises TransactionStateError once a transaction has ended."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop renewing. Waits for a renewal in progress."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        link: Link | None = None
        try:
            while not self._over.wait(self._lease_ms / 3000):
                link = link or Link(self._connector, self._address)
                try:
                    link.run(self._renew_all)
                except RETRYABLE as error:
                    # The leases have not expired yet: the next renewal may succeed.
                    log.warning("leases could not be renewed", extra={"error": str(error)})
                except PenstockError as error:
                    self._failure = error
                    return
        finally:
            if link is not None:
                link.close()

    async def _renew_all(self, services: Services) -> None:
        for stream, transaction in tuple(self._held):
            await renew(services, stream, transaction, self._lease_ms)
