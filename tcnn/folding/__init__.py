"""Simplify a T-CNN for inference: fold convolutional heads into convolutions, fuse layers."""
