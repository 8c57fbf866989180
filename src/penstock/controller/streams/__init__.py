"""Streams and scopes: made, changed, scaled, sealed, truncated, deleted and asked about."""
