"""Validation of submitted requests: the body is read, its references are resolved, and the whole is checked."""
