"""The audit job: counts and checksums of a stream, and what differs between two."""
