"""The source: batch and streaming reads, what a task reads, and what a query tells retention."""
