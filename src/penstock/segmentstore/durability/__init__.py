"""The log, the checkpoints, and recovery from both."""
