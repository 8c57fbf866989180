"""Evidence: the audit log as a Merkle tree, and what can be verified from files alone.

docs/formats/audit.md describes the log.
"""
