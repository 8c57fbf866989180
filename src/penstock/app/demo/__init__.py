"""``penstock demo``: flights through a store, Spark and retention, with a crash in between, checked at the end.

Each part of the demo is a process of its own, so that one can be killed: the server, the writer (``ingest``), the
Spark query (``penstock.spark.flight_delays``, started by name and never imported). Start reading at ``run``.
"""
