"""Image sizes as they are typed: pixels as 224, or 224x160 (height × width), or several of them with commas."""

from tcnn.errors import RequestError


def sides(text: str) -> tuple[int, int]:
    """The (height, width) of one size; raises `RequestError`."""
    parts = [part.strip() for part in text.lower().replace("×", "x").split("x")]
    if len(parts) > 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise RequestError(f"--size: expected pixels as 224 or 224x160 (height × width), found {text!r}")
    return int(parts[0]), int(parts[-1])


def size(text: str | None) -> int | tuple[int, int] | None:
    """One size as a configuration has it: a side, (height, width), or None where nothing was typed."""
    if text is None:
        return None
    height, width = sides(text)
    return (height, width) if "x" in text.lower().replace("×", "x") else height


def several(text: str | None) -> tuple[tuple[int, int], ...]:
    """`160,224x192` → ((160, 160), (224, 192)); raises `RequestError`."""
    return () if text is None else tuple(sides(part) for part in text.split(","))
