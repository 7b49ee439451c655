"""Responses that are more than a JSON object: event streams, and files in parts."""
