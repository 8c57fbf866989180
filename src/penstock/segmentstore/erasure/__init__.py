"""Erasure in the store: rewrites chunks without the erased bytes, and removes the bytes from the log."""
