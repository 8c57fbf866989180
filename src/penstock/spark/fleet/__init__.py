"""Retention of very many streams at once: facts and decisions as Arrow, and what is worked out on them in bulk."""
