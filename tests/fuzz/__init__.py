"""Every decoder against bytes that nobody meant: seeded mutations of real inputs; ``python -m tests.fuzz``."""
