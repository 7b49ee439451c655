"""The command line: the `tcnn` command, its sub-commands, exit codes, error messages and signals."""
