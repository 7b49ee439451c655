"""Commands of the queue and its client, which join `tcnn` through the entry-point group `tcnn.commands`."""
