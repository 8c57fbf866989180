"""Read, process, write, exactly once: a reader of a group commits its positions with the events that it writes.

Start reading at ``group_transaction``, which programs use. ``positions`` is the reader's side of it. Imports
``client.reading``, ``client.writing`` and ``ports``; knows no server. Reasons: docs/design/0049-read-process-write.md.
"""
