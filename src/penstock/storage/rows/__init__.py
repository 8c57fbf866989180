"""The durable key-value store: one SQLite file.

``sqlite_keyvalue`` implements ``ports.keyvalue.KeyValueStore``; ``sqlite_room`` keeps disk space for it. The other
modules read, check or copy a file that another process or nobody has open. Imports ``storage.machine``, ``ports`` and
``model``. Start reading at ``sqlite_keyvalue``.
"""
