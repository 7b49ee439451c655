"""Reading the queue: lists of jobs, queue positions and why jobs wait, and figures for operators and monitoring."""
