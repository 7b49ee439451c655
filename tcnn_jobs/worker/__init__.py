"""The worker: claims jobs, runs each in a process of its own, and keeps house."""
