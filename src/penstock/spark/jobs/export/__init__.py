"""The export job: a stream's events as files."""
