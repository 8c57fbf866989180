"""A store whose log is on BookKeeper or in its tier 2: ``log_place`` (where the log is, and the mark that binds a store to
it), ``binding`` (which log is whose), ``replicated_log`` and ``object_log`` (open it for its store alone), ``takeover``
(continues the store in another directory).

Start reading at ``binding``. Source: docs/design/0062-log-on-bookkeeper.md and 0064-start-elsewhere.md.
"""
