"""Tier 2 of a container: write appended bytes as blocks of chunks, read, lease, import and free them."""
