"""Tier 1 on local files: a fenced log of frames, in files that are filled with zeros once and then recycled."""
