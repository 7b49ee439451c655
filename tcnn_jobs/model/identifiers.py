"""Identifiers of jobs, uploads and keys: generated, and validated before they reach a database or a message."""

import secrets

LONGEST = 100
"""Characters of an identifier in a message: it comes from outside, and may be a page of them."""


def new_id(prefix: str) -> str:
    """Generate an unguessable identifier: `job_`, `ds_` or another prefix, and 24 hexadecimal digits."""
    return f"{prefix}_{secrets.token_hex(12)}"


def storable(text: str) -> bool:
    """Whether a text from outside can be an identifier at all; databases refuse NUL and lone surrogates."""
    return text.isascii() and text.isprintable()


def shown(text: str) -> str:
    """Escape a text from outside for a message of one line, and cut one that is longer than any identifier."""
    told = text if storable(text) else ascii(text)
    return told if len(told) <= LONGEST else f"{told[:LONGEST]}..."


def no_such(noun: str, id: str, listed: str | None = None) -> str:
    """What is said of an id that opens nothing, whatever the reason, and by which route those that do are listed."""
    return f"{shown(id)}: no such {noun}" + (f"; GET /{listed} lists yours" if listed else "")
