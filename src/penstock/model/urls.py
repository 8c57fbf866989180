"""URLs that people and peers write."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from penstock.model.errors import InvalidArgumentError


def url_parts(url: str) -> SplitResult:
    """The parts of a URL, or of a path, which has no scheme. Raises InvalidArgumentError for what is neither."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise InvalidArgumentError("this is no URL", url=url, reason=str(error)) from error
