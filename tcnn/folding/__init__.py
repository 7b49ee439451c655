"""A T-CNN made simpler for inference: heads that stayed convolutions, layers prepared to run."""
