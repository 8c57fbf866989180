"""Read objects by their location, wherever they lie, without a store."""

from __future__ import annotations


def read_location(location: str, start: int, length: int) -> bytes:
    """Bytes of the object that ``Objects.location`` named with a URL; blocks.

    Raises: FileNotFoundError, UnavailableError (also for fewer bytes than requested), InvalidArgumentError,
    ModuleNotFoundError (the library for it is missing).
    """
    if location.startswith("hdfs://"):
        from penstock.storage.objects import hdfs_objects

        return hdfs_objects.read_location(location, start, length)
    from penstock.storage.objects import cloud_objects

    return cloud_objects.read_location(location, start, length)
