"""The data pipeline: Penstock as a source and a sink of PySpark.

Importing this package loads neither PySpark nor Arrow: ``session`` and ``java`` are what a driver script needs,
``source`` is found by Spark through the package ``pyspark_penstock``.
"""
