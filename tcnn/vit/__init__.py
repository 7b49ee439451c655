"""Initialise timm's vision transformers: as random impulse convolutions, mimetic, or as timm does."""
