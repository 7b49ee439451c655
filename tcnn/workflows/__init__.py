"""Workflows from a model name or file to a verified file, as the commands and jobs run them."""
