"""``penstock demo``: flights through a store, Spark and retention, with a crash in between, checked at the end."""
