"""Artifact storage: results, uploads and resume points, in this host's home or in a store that all hosts share."""
