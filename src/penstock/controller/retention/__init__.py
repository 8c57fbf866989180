"""Retention of streams: policies, holds, the planner's facts, and the loop that performs its decisions."""
