"""Calls of a container: appends, changes of segments and tables, reads, adoption of imported chunks.

Each call gathers facts, decides with ``core.segments``, queues an operation (``mutations``) and waits for it to be
durable. Imports the state of a container (``state``, ``segment``) and ``tiering``, never the container. Start reading
at ``segments``.
"""
