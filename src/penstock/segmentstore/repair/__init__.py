"""What is damaged: found by scrubs and at start, set aside, and rebuilt from tier 2."""
