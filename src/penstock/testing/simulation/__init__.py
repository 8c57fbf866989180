"""Deterministic simulation: one seed replays one run, byte for byte, in seconds instead of days."""
