"""Identifiers: made so that nobody guesses them, and looked at before they reach a database or a message."""

import secrets


def new_id(prefix: str) -> str:
    """An identifier that nobody can guess: `job_`, `ds_` or `ckpt_` and 24 hexadecimal digits."""
    return f"{prefix}_{secrets.token_hex(12)}"


def storable(text: str) -> bool:
    """Whether a text from outside can be an identifier at all; databases refuse NUL and lone surrogates."""
    return text.isascii() and text.isprintable()


def shown(text: str) -> str:
    """A text from outside as part of a message of one line."""
    return text if storable(text) else ascii(text)
