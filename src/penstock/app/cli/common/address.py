"""The address of the store that commands reach where no option names one."""

from __future__ import annotations

import os

from penstock.app.settings import CONTROLLER_PORT

DEFAULT_CONTROLLER = f"localhost:{CONTROLLER_PORT}"
ENVIRONMENT = "PENSTOCK_CONTROLLER"
"""The variable with the address of the store to reach."""


def default_controller() -> str:
    """The address to reach where no option names one."""
    return os.environ.get(ENVIRONMENT) or DEFAULT_CONTROLLER
