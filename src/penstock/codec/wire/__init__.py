"""Pravega's segment-store protocol: bytes to commands and back, without I/O."""
