"""Other stream stores beside ours, in the same run: their servers, a client process for each, and the table."""
