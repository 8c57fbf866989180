"""What stands in the way of a removal: holds, retention locks, and the approval of a second identity.

Every removal that a person requests asks ``guard.py`` and the gate of ``approvals.py``; rules keep the minimum that a
lock protects by themselves. ``approved.py`` performs what was approved. Start reading at ``guard.py``.
Source: docs/design/0054-locks.md, docs/design/0055-four-eyes.md.
"""
