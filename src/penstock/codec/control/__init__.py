"""What the controller stores in its table: one small JSON object for each key, with a version in each."""
