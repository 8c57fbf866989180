"""Penstock: a stream store for Python and Spark, in which *when data goes away* is a promise."""

__version__ = "0.1.0"
