"""Parse URLs from users and peers."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from penstock.model.errors import InvalidArgumentError


def url_parts(url: str) -> SplitResult:
    """Split a URL, or a path, which has no scheme. Raises InvalidArgumentError if the text is neither."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise InvalidArgumentError("this is not a valid URL", url=url, reason=str(error)) from error
