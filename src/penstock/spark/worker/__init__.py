"""The Python processes that Spark forks for tasks: fast start, no idle work, and an end with their driver."""
