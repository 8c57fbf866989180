"""Tier 1 on local files: a fenced log of frames, written once with zeros and then recycled."""
