"""The blocking API of approvals: the same names as ``penstock.client.retention``, no ``await``."""

from __future__ import annotations

from penstock.client.blocking.derived import Blocking, blocking
from penstock.client.retention import AsyncApprovals


class Approvals(Blocking[AsyncApprovals]):
    """Approvals of a store. A call whose action needs approval raises ApprovalRequiredError, which names the request."""

    require = blocking(AsyncApprovals.require)
    required = blocking(AsyncApprovals.required)
    list = blocking(AsyncApprovals.list)
    show = blocking(AsyncApprovals.show)
    approve = blocking(AsyncApprovals.approve)
    refuse = blocking(AsyncApprovals.refuse)
    withdraw = blocking(AsyncApprovals.withdraw)
