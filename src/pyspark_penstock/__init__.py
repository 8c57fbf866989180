"""Makes the format ``penstock`` known to Spark: it imports every package named ``pyspark_*`` that is installed.

Spark does so in every session, also in those that never use the format, and a failing one breaks them all: so this stays
light, and loads neither Arrow nor gRPC.
"""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
