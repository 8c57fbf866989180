"""Writers: events become blocks, and each block is appended exactly once, in order per routing key."""
