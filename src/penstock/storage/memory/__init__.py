"""All storage in memory: for simulation, tests, and stores that need not outlive their process."""
