"""Streams and scopes: create, change, scale, seal, truncate, delete and describe them."""
