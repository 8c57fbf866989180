"""What the controller stores in its table: one small JSON object per key, each with a version."""
