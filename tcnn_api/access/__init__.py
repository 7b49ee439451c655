"""Who asks: API keys of the settings and of the store, their scopes, and how guessing is slowed down."""
