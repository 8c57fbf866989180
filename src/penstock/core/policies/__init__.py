"""Policies: what applies to a stream out of all levels, and one sentence that says what it does. Pure."""
