"""Identifiers of jobs, uploads and keys: generated, and validated before they reach a database or a message."""

import secrets


def new_id(prefix: str) -> str:
    """Generate an unguessable identifier: `job_`, `ds_` or another prefix, and 24 hexadecimal digits."""
    return f"{prefix}_{secrets.token_hex(12)}"


def storable(text: str) -> bool:
    """Whether a text from outside can be an identifier at all; databases refuse NUL and lone surrogates."""
    return text.isascii() and text.isprintable()


def shown(text: str) -> str:
    """Escape a text from outside for a message of one line."""
    return text if storable(text) else ascii(text)
