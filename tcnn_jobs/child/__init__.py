"""A job's own process, the only one that loads torch for the queue."""
