"""Models for runtimes that are not PyTorch."""
