"""The blocking face of the client: the same names, no ``await``. One background thread runs the loop."""
