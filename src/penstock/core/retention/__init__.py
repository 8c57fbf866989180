"""The retention planner: what one cycle does to one stream, why each byte is kept, and what a policy deletes."""
