"""Retention of streams: policies, holds, the facts that the planner gets, and the loop that performs its decisions."""
