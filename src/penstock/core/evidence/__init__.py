"""Evidence: the audit log as a Merkle tree, and what can be verified from files and a public key alone.

No store is needed to verify. docs/formats/evidence.md describes the formats; scripts/verify.py is the same verifier
without this package. Start reading at ``audit_log``.
"""
