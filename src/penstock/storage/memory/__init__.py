"""All storage in memory: for simulation, tests, and temporary stores."""
