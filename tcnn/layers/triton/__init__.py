"""GPSA as Triton kernels for a GPU."""
