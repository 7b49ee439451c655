"""Evaluation: accuracy on images as they are, corrupted, or of ImageNet variants; predictions; intervals."""
