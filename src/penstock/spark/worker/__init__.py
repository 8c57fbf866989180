"""The Python processes that Spark forks for tasks: started warm, spared idle work, ended with their driver."""
