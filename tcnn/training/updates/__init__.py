"""Updates: the training loop, its steps and what they are computed with, and saving after them."""
