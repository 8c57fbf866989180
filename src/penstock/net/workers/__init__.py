"""A server and its worker processes, or a controller and its containers: calls over one connection each.

``worker_segments`` is the server's ``SegmentService`` over all workers; ``worker_server`` serves one worker's store
to it over a ``link``. ``tcp_link`` makes links between machines, after a ``handshake`` on a ``frame_exchange``. Starting
and watching the processes is the work of ``app.workers``. Imports ``core``, ``ports`` and ``model``. Start reading at
``worker_segments``. Source: docs/design/0014-workers.md, 0065-cluster.md.
"""
