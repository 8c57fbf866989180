"""Policies: what applies to a stream from all levels, one sentence that describes it, and which holds are legal. Pure."""
