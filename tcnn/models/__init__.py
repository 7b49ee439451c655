"""Looking at any model: how it runs, what it returns, how far two of them are apart."""
