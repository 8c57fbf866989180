"""The planner's JSON: one line of facts in, one decision out, for the command line and for fleets. Needs no store."""
