"""Evaluation: accuracy, corruptions, ImageNet variants, comparison of several models."""
