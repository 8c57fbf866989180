"""Tables of a lake that a stream is copied to: Delta Lake, Apache Iceberg, or plain Parquet.

``port`` has what all formats do: commit files and the stream's cut in one step. ``delta``, ``iceberg`` and ``parquet``
implement it. ``place`` reads and writes files on a disk or in an object store, ``rows`` writes data files, ``upkeep`` merges
small files and erases rows. Nothing here imports PySpark. Start reading at ``port``.
"""
