"""The segment store: containers of segments over one log, one key-value store and one chunk storage.

Start reading at ``container`` and docs/design/0005-segment-store.md.
"""
