"""From a CNN to a T-CNN: what is replaced, by what, and nothing else lost."""
