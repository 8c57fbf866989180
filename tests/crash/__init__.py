"""The real store on a real file system: crash states, failing system calls, rotten bits, ``kill -9``.

Source: docs/design/0042-crash-tests.md.
"""
