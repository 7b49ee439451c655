"""Where results, uploads and resume points are kept: in this host's home, or in a store that all hosts share."""
