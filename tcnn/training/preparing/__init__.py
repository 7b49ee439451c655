"""Preparing a run: its settings checked, its data opened, its first model loaded, converted and verified."""
