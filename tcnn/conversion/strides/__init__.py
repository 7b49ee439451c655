"""Stride removal: a stage at stride 1, as in the paper (`remove`) or with dilated kernels (`dilate`)."""
