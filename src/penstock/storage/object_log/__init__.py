"""A log as objects of tier 2: ``ledgers`` (ledgers whose entries are objects), ``writer`` (writes one of them),
``bucket_record`` and ``directory`` (the record of the log, in a bucket and in a directory), ``limits``.

Start reading at ``ledgers``. Source: docs/design/0064-start-elsewhere.md.
"""
