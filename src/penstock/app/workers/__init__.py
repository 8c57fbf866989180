"""The worker processes of a server: their layout, their start, and their work."""
