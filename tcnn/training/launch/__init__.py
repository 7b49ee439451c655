"""Launch a run in several processes, by torchrun on this host or on a Ray cluster."""
