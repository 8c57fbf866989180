"""Tier 2: chunks in files, in a shared directory, or in an object store, and which store owns them."""
