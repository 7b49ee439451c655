"""The GPSA layer: what it costs, and how far from its convolution it is."""
