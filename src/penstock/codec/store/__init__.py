"""What a segment store writes: log frames, operations, rows, chunks and their catalogue.

The log (``wal``, ``operation_frames``, ``operations``), metadata rows (``rows``), and chunks with their sidecars
(``chunk_index``, ``erased``, ``catalogue``). Imports ``model`` and ``codec.dictionary``. Start reading at
``operations`` for tier 1 and ``rows`` for checkpoints. The formats are in docs/formats.
"""
