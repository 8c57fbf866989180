"""Policies: what applies to a stream from all levels, and one sentence that describes it. Pure."""
