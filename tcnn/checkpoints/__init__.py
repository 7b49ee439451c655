"""Files from which a model comes back."""
