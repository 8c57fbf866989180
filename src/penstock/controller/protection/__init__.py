"""What stands in the way of a removal: holds and retention locks.

Every removal that a person requests asks ``guard.py``; rules keep the minimum that a lock protects by themselves.
Start reading at ``guard.py``. Source: docs/design/0054-locks.md.
"""
