"""The retention planner: the effect of one cycle on a stream, why each byte is kept, and what a policy deletes."""
