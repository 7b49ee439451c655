"""Whole networks: what converting, running and training them costs, in time and memory."""
