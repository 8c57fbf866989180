"""Secrets in URLs, kept out of all that is printed."""

from __future__ import annotations

import re

HIDDEN = "***"
# A secret may hold any character, a slash too: all up to the last @ of the word may be one. A path turns :// into :/.
_AFTER_SCHEME = re.compile(r"(?P<kept>[A-Za-z][A-Za-z0-9+.-]*:/+)\S*@")
_USER = re.compile(r"[^\s/'\":]*:(?!/)\S*@")
_QUERY = re.compile(
    r"(?P<kept>[?&][^\s=&]*(?:key|secret|token|password|signature|credential)[^\s=&]*=)[^\s&'\"]+", re.IGNORECASE
)


def redacted(text: str) -> str:
    """The text with ``***`` for user names and passwords in URLs and addresses, and for secrets in queries of URLs."""
    if "@" in text:
        text = _AFTER_SCHEME.sub(rf"\g<kept>{HIDDEN}@", text)
    return _QUERY.sub(rf"\g<kept>{HIDDEN}", text) if "=" in text else text


def redacted_address(text: str) -> str:
    """The same for what should be a place or an address, with a scheme or without: what could be a user and a password."""
    return _USER.sub(f"{HIDDEN}@", redacted(text))
