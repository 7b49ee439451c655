"""Publishing: a model repository on the Hugging Face Hub, with its card, accuracy with intervals, and pictures."""
