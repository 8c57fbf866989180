"""The worker processes of a server: their layout, their start, and what each of them does."""
