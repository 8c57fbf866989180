"""The audit job: counts and checksums of a stream, and the differences between two streams.

``job`` appends one run to an audit table; ``files`` is its directory, ``rows`` and ``sums`` are its columns. Imports
``client``, ``codec`` and ``spark.reading``. Start reading at ``job``. Source: docs/formats/lake.md.
"""
