"""The pipeline on Spark: one session, beside Parquet of the same rows and beside Spark's Kafka source on a local Kafka."""
