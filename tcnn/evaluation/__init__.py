"""How good a model is: accuracy, corruptions, ImageNet's variants, several models side by side."""
