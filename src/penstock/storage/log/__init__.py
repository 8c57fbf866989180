"""Tier 1 on local files: a fenced log of frames, in files that are zeroed once and then recycled."""
