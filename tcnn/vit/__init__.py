"""Initialise timm's vision transformers and ConvMixers: as convolutions, random impulses, mimetic, or as timm does."""
