"""Damage: found by scrubs and at start, set aside, and repaired from tier 2."""
