"""Evidence: the state of the audit log, its signing keys and checkpoints, and signed documents about what was removed.

``controller.retention.audit`` appends the entries; this package knows their place in the log.
"""
