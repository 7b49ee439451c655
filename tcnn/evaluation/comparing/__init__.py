"""Comparing: several models on the same images, and what the comparison says: tables, differences, single images."""
