"""Pulsar's names and ours: ``tenant/namespace`` is the scope ``tenant.namespace``, a topic a stream, a subscription a group.

Pulsar accepts almost any character, a scope or stream only letters, digits, dots and dashes. Every other byte is
written as two dots and two hex digits, and so is a dot that would be ambiguous. So a name is always read back
unchanged. Source: docs/reference/pulsar-admin.md.
"""

from __future__ import annotations

import re

from penstock.model.errors import InvalidNameError
from penstock.model.names import SCOPE_NAME_MAX, STREAM_NAME_MAX, StreamName
from penstock.model.values.dataclass import dataclass

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")
_ESCAPE = re.compile(rb"\.\.([0-9a-f]{2})")
_NAMED_ENTITY = re.compile(r"[-=:.\w]+\Z", re.ASCII)
_PARTITION = re.compile(r"(.+)-partition-(\d{1,9})\Z", re.DOTALL)
_GROUP_NAME_MAX = 200  # characters of an escaped subscription name


def is_entity_name(name: str) -> bool:
    """Whether Pulsar accepts it as the name of a tenant or a namespace."""
    return _NAMED_ENTITY.match(name) is not None


def _write(name: str, *, dots: bool) -> str:
    raw = name.encode()
    out: list[str] = []
    for index, byte in enumerate(raw):
        follows = raw[index + 1 : index + 2]
        # A dot is kept only inside a name and before a plain character, so that two dots always begin an escape.
        inner_dot = dots and byte == 0x2E and index > 0 and follows != b"" and follows[0] in _PLAIN
        out.append(chr(byte) if byte in _PLAIN or inner_dot else f"..{byte:02x}")
    return "".join(out)


def _read(name: str, *, dots: bool = True) -> str | None:
    """The name that is written like this, or None if it is not a valid form."""
    try:
        text = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), name.encode()).decode()
    except UnicodeDecodeError:
        return None
    return text if _write(text, dots=dots) == name else None


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """A namespace. Prints as ``tenant/namespace``."""

    tenant: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}"

    @property
    def scope(self) -> str:
        """The scope that is this namespace. Raises InvalidNameError if its name would be too long."""
        scope = f"{_write(self.tenant, dots=False)}.{_write(self.namespace, dots=True)}"
        if len(scope) > SCOPE_NAME_MAX:
            raise InvalidNameError("namespace name is too long", name=repr(str(self)[:80]), scope_chars=len(scope))
        return scope

    @classmethod
    def of_scope(cls, scope: str) -> NamespaceName | None:
        """The namespace that is this scope, or None if there is none."""
        at = 0
        while (at := scope.find(".", at)) >= 0 and _ESCAPE.match(scope.encode(), at):
            at += 4
        if at <= 0:
            return None
        tenant, namespace = _read(scope[:at], dots=False), _read(scope[at + 1 :])
        if not tenant or not namespace or not is_entity_name(tenant) or not is_entity_name(namespace):
            return None
        name = cls(tenant, namespace)
        return name if name.scope == scope else None


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A persistent topic as a whole, not a partition, by its local name. Prints as its full name."""

    namespace: NamespaceName
    local: str

    def __str__(self) -> str:
        return f"persistent://{self.namespace}/{self.local}"

    @property
    def stream(self) -> StreamName:
        """The stream that is this topic. Raises InvalidNameError if its name would be too long."""
        stream = _write(self.local, dots=True)
        if not 0 < len(stream) <= STREAM_NAME_MAX:
            raise InvalidNameError("topic name is empty or too long", name=repr(self.local[:80]), chars=len(stream))
        return StreamName(self.namespace.scope, stream)

    @classmethod
    def of_stream(cls, namespace: NamespaceName, stream: str) -> TopicName | None:
        """The topic that is this stream, or None: internal streams are not topics."""
        local = None if stream.startswith("_") else _read(stream)
        return None if local is None else cls(namespace, local)

    def partition(self, index: int) -> str:
        """The full name of a partition."""
        return f"{self}-partition-{index}"


def split_partition(local: str) -> tuple[str, int] | None:
    """Topic and index if the name is that of a partition, else None."""
    match = _PARTITION.match(local)
    return None if match is None else (match[1], int(match[2]))


def group_of(subscription: str) -> str:
    """The reader group that is this subscription. Raises InvalidNameError if its name is empty or too long."""
    group = _write(subscription, dots=True)
    if not 0 < len(group) <= _GROUP_NAME_MAX:
        raise InvalidNameError("subscription name is empty or too long", name=repr(subscription[:80]))
    return group


def subscription_of(scope: str, subscriber: str) -> str:
    """The subscription that is this subscriber (``scope/group``); a subscriber of another scope keeps its full name."""
    owner, _, group = subscriber.partition("/")
    name = _read(group) if owner == scope else None
    return subscriber if name is None else name


def subscriber_of(scope: str, subscription: str) -> str:
    """Inverse of ``subscription_of``. Raises InvalidNameError."""
    owner, slash, group = subscription.partition("/")
    if slash and owner != scope and _read(group) is not None:
        return subscription
    return f"{scope}/{group_of(subscription)}"
