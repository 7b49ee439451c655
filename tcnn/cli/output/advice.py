"""Advice of the library in the words of the command that was given: no option that it does not have is named."""

from collections.abc import Collection

WEIGHTS, RANDOM = "--weights", "--no-pretrained"
BOTH = f"give {WEIGHTS} FILE, or {RANDOM} for random ones"
CACHE = "fill the cache (HF_HOME) on a connected machine"


def fitting(message: str, options: Collection[str]) -> str:
    """A message, with what a command of these options can do where it says how to get weights."""
    if BOTH not in message or RANDOM in options:
        return message
    if WEIGHTS in options:
        return message.replace(f"{CACHE}, {BOTH}", f"{CACHE}, or give {WEIGHTS} FILE").replace(
            BOTH, f"give {WEIGHTS} FILE"
        )
    made = f"make a checkpoint with tcnn convert, which takes {WEIGHTS} FILE"
    return message.replace(f"{CACHE}, {BOTH}", f"{CACHE}, or {made}").replace(BOTH, made)
