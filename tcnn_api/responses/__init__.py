"""Responses that are more than a JSON object: event streams, files in parts, tables."""
