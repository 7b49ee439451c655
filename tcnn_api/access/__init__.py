"""Authentication: API keys of the settings and of the store, scopes, and rate limits on wrong keys."""
