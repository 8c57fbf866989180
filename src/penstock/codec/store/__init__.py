"""What a segment store writes: log frames, operations, rows, chunks and their catalogue."""
