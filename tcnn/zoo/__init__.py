"""timm's models: which of them can be converted, and where their weights come from."""
