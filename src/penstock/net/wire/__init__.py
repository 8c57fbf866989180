"""Pravega's wire protocol over TCP: the segment store's port.

``wire_server`` accepts; ``connection`` parses into arenas (``arena``, ``frames``) and passes each request on:
``appends``, ``reading`` or ``requests``. Every queue and buffer has a bound (``wire_limits``). Imports
``codec.wire``, ``core``, ``net.native`` and ``ports``; the store is a ``SegmentService``. Start reading at
``connection``.
"""
