"""A store whose log is on BookKeeper: ``log_place`` (where the log is, and the mark that binds a store to it),
``replicated_log`` (opens it for its store alone), ``takeover`` (continues the store in another directory).

Start reading at ``replicated_log``. Source: docs/design/0062-log-on-bookkeeper.md and 0064-start-elsewhere.md.
"""
