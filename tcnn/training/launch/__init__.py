"""Runs that several processes share, started from one that takes no part in them."""
