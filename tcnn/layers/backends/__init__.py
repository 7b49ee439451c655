"""Backends: exact implementations of GPSA (reference, dense, chunked, scoped, hard-limit convolution, autotuning)."""
