"""Data sets of images and classes by timm's names, transforms, deterministic order, and data loaders."""
