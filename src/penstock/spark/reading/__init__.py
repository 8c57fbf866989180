"""The source: batch and streaming reads, the reading tasks, and what a query acknowledges for retention.

The driver plans (``planning`` gathers facts, ``plan`` shares out the range); tasks run ``partition`` and ``scan``. A
streaming query is ``stream``, with ``positions`` and ``following`` for its offsets and ``subscription`` for what
retention may delete. Imports the client. Start reading at ``planning`` and ``scan``.
"""
