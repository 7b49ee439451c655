"""Plots of training, attention and robustness; every function returns a matplotlib figure and opens no window."""
