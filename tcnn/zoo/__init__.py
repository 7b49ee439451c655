"""timm's models: the catalogue of convertible models, and how source models are created with their weights."""
