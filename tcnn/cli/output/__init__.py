"""Output of the commands: tables on stdout, progress on stderr, or one JSON object."""
