"""Readers, alone and in groups: every event once, in order per routing key, across scaling."""
