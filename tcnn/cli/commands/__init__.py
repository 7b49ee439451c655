"""The commands, one a file: each parses options, calls the library and prints the result."""
