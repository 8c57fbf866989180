"""The blocking client: the same names without ``await``. One background thread runs the event loop.

Classes and their documentation are derived from the asynchronous client (``derived``), so this package has only what
differs: crossing between threads (``loop_thread``) and buffers in the caller's thread (``writers``, ``readers``).
Imports the other packages of ``client``. Start reading at ``stores``.
"""
