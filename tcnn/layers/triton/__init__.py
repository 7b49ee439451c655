"""The attention as Triton kernels for a GPU."""
