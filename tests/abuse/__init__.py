"""Hostile peers and damaged surroundings: ``peers`` and ``http2`` are the peers, for ``bench.bounded`` too."""
