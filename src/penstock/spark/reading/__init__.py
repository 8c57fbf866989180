"""The source: batch and streaming reads, the reading tasks, and what a query acknowledges for retention."""
