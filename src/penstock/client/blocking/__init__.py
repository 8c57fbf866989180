"""The blocking client: the same names without ``await``. One background thread runs the event loop."""
