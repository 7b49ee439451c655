"""Sandboxed processes that examine what clients send: limits on memory and CPU time, an environment without secrets."""
