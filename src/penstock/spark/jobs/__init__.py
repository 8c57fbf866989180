"""Work on whole streams, scopes and fleets that only Spark can carry: one module a job, each a function with a report.

A job is called with a session and values, tells its progress through a callback, and returns a frozen report that knows
how to be JSON. ``penstock.spark.cli`` makes the same jobs commands.
"""
