"""Sandboxed processes that examine uploads: limits on memory and CPU time, an environment without secrets."""
