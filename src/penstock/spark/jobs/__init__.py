"""Work on whole streams, scopes and fleets that needs Spark. Each job is one module: a function that returns a report.

A job takes a session and plain values, reports its progress through a callback, and returns a frozen report that can be
written as JSON. ``penstock.spark.cli`` offers the same jobs as commands.
"""
