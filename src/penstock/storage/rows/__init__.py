"""The key-value store of production: one SQLite file."""
