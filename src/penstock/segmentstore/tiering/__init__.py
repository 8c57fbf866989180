"""Tier 2 of a container: appended bytes become blocks of chunks, are read back, leased, imported, and given back."""
