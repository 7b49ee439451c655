"""Commands that make checkpoints, prove them, tell what is in them and pass them on, one a file."""
