"""Writers: events become blocks, and each block is appended exactly once, in order per routing key.

An event goes through ``prepare`` (checked and framed), ``lanes`` (one per segment or range of keys), ``write_blocks``
and ``segment_sender`` (in flight, repeated after a lost connection). ``writer_core`` runs them in the event loop;
``direct`` and ``local_line`` are shorter ways for single events. Start reading at ``writer``, then ``writer_core``.
"""
