"""The queue's commands; they join the `tcnn` command line through the entry-point group `tcnn.commands`."""
