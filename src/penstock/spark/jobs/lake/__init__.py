"""The lake job: a stream's events in a table of Delta Lake, Apache Iceberg or Parquet, each exactly once.

``job`` runs on the driver, ``task`` on executors. Tables are in ``spark.lake``. Start reading at ``job``.
"""
