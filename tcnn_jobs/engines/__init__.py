"""How a job's process is started, asked to stop, and ended."""
