"""The audit job: counts and checksums of a stream, and the differences between two streams."""
