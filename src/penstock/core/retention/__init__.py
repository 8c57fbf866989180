"""The retention planner: what one cycle does with one stream, why each byte is still there, what a policy deletes."""
