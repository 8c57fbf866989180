"""Serializers turn values into events and back; typed writers and readers use them.

``serializer.py`` has the interface, ``plain.py`` bytes, text and JSON, ``avro.py`` and ``protobuf.py`` one each. With a
schema registry (``registered.py``) an event carries the number of its schema. ``confluent.py`` and ``memory.py`` are
registries. ``typed_writer.py``, ``typed_reader.py``, ``typed_group_reader.py`` and ``typed_transactions.py`` are the
asynchronous typed streams; ``events.py`` has what they share with the blocking ones.
"""
