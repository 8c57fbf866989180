"""The durable key-value store: one SQLite file."""
