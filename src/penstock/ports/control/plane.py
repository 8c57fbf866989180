"""The control plane as a whole."""

from __future__ import annotations

from typing import Protocol

from penstock.ports.control.batches import Batches
from penstock.ports.control.cuts import Cuts
from penstock.ports.control.erasures import Cases, Erasures
from penstock.ports.control.evidence import Evidence
from penstock.ports.control.groups import ReaderGroups
from penstock.ports.control.holds import Approvals, Holds
from penstock.ports.control.layout import Layout
from penstock.ports.control.policies import Policies
from penstock.ports.control.retention import Retention
from penstock.ports.control.scopes import Scopes
from penstock.ports.control.streams import Streams
from penstock.ports.control.subscribers import Subscribers
from penstock.ports.control.tables import KeyValueTables
from penstock.ports.control.transactions import Transactions


class RemovalPlane(Protocol):
    """The subjects that decide what is removed and when."""

    @property
    def subscribers(self) -> Subscribers: ...

    @property
    def policies(self) -> Policies: ...

    @property
    def retention(self) -> Retention: ...

    @property
    def holds(self) -> Holds: ...

    @property
    def erasures(self) -> Erasures: ...

    @property
    def cases(self) -> Cases: ...

    @property
    def evidence(self) -> Evidence: ...

    @property
    def approvals(self) -> Approvals: ...


class ControlPlane(RemovalPlane, Protocol):
    """The control plane by subject, in process or over gRPC.

    Every change is durable when its call returns, and safe to repeat, but for ``retention.undo`` and ``undo_last``.
    All calls may raise UnavailableError.
    Source: Pravega's controller API, docs/design/0006-controller.md.
    """

    @property
    def scopes(self) -> Scopes: ...

    @property
    def streams(self) -> Streams: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def cuts(self) -> Cuts: ...

    @property
    def transactions(self) -> Transactions: ...

    @property
    def batches(self) -> Batches: ...

    @property
    def groups(self) -> ReaderGroups: ...

    @property
    def tables(self) -> KeyValueTables: ...
