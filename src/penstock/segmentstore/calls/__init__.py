"""Calls of a container: changes of segments and tables, reads, adoption of imported chunks."""
