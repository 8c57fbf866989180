"""Hide secrets in URLs before anything is printed.

Anyone who can make a call fail can cause a text of any length. So the time of every function here is linear in the length
of the text: each word is searched once, not again from each of its characters.
"""

from __future__ import annotations

import re

HIDDEN = "***"
_WORD = re.compile(r"\S++")
# pathlib turns :// into :/.
_SCHEME = re.compile(r"(?<=[A-Za-z0-9+.-]):/+")
_COLON = re.compile(r":(?!/)")
_USER_BREAKS = "/'\":"
# Match only at the start of a name, so that a failed match is not tried again from the second character.
_NAME = re.compile(r"(?<![^\s=&])[^\s=&]++=")
_SECRET_NAME = re.compile(r"key|secret|token|password|signature|credential", re.IGNORECASE)
_VALUE = re.compile(r"[^\s&'\"]++")


def redacted(text: str) -> str:
    """The text with ``***`` for user names and passwords in URLs and addresses, and for secrets in queries of URLs."""
    if "@" in text:
        text = _WORD.sub(lambda word: _without_user(word[0]), text)
    return _without_secrets(text) if "=" in text else text


def redacted_address(text: str) -> str:
    """As ``redacted``, for a location or an address: also hides a user and a password without a scheme in front."""
    text = redacted(text)
    return _WORD.sub(lambda word: _without_bare_user(word[0]), text) if "@" in text else text


def _without_user(word: str) -> str:
    # A secret may contain any character, even a slash, so everything up to the last @ of the word is hidden.
    end = word.rfind("@")
    scheme = _SCHEME.search(word, 0, end) if end >= 0 else None
    return word if scheme is None else f"{word[: scheme.end()]}{HIDDEN}{word[end:]}"


def _without_bare_user(word: str) -> str:
    end = word.rfind("@")
    colon = _COLON.search(word, 0, end) if end >= 0 else None
    if colon is None:
        return word
    begin = 1 + max(word.rfind(character, 0, colon.start()) for character in _USER_BREAKS)
    return f"{word[:begin]}{HIDDEN}{word[end:]}"


def _without_secrets(text: str) -> str:
    shown: list[str] = []
    at = 0
    for name in _NAME.finditer(text):
        if name.start() < at:
            continue  # part of a value that is hidden
        begin = name.start() if text[name.start() - 1 : name.start()] == "&" else text.find("?", *name.span())
        value = _VALUE.match(text, name.end())
        if begin >= 0 and value is not None and _SECRET_NAME.search(text, begin, name.end()):
            shown += [text[at : name.end()], HIDDEN]
            at = value.end()
    return "".join([*shown, text[at:]])
