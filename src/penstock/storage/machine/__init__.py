"""This machine: files, disk, clock, threads, randomness, and memory that processes share."""
