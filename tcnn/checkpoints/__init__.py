"""Checkpoints: save and load converted models as safetensors files or in timm's hub layout."""
