"""For planted bugs: the scenario that finds one, and what its failure says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.model.errors import ContainerOfflineError, NotFoundError


def finds(scenario: Callable[[], None], sign: str) -> None:
    """Check that the scenario fails with ``sign`` in its message: another failure would find nothing."""
    # A violated promise: a failed check, an error that was not expected, or none where one was.
    with pytest.raises((AssertionError, ContainerOfflineError, NotFoundError, pytest.fail.Exception)) as found:
        scenario()
    assert sign in str(found.value)
