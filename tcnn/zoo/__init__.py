"""timm's models and networks of one's own: the catalogue, and how source models are created with their weights."""
