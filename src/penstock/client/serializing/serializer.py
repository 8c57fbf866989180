"""The interface of serializers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

T = TypeVar("T")


class Serializer(ABC, Generic[T]):
    """Turns values into the bytes of events and back. Implement ``encode`` and ``decode`` for a form of your own."""

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """The bytes of a value.

        Raises InvalidArgumentError: the value does not fit. With a registry also IncompatibleSchemaError and
        SchemaRegistryUnavailableError; nothing is written then.
        """

    @abstractmethod
    def decode(self, data: bytes) -> T:
        """The value of the bytes.

        Raises DecodeError: they are of another form. With a registry also SchemaRegistryUnavailableError.
        """

    def needs_lookup(self, data: bytes | None) -> bool:
        """Whether ``decode(data)``, or for None ``encode``, would ask a registry now. An event loop then makes the call
        in a thread."""
        return False
