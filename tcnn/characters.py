"""Characters of names that people give: of classes, files, runs, tags, keys. One rule for all of them, in any script.

A name is one line of text. Refused is what would break the line, or show another order of letters than there is:

==========================  =======================================================================================
Cc                          control characters: line ends, tabs, and the escapes by which a terminal is steered
Cs                          lone surrogates, which are what Python reads where bytes are no UTF-8: nothing encodes them
U+2028, U+2029              line and paragraph separators: the other line ends of Unicode
U+202A–202E, U+2066–2069    overrides and embeddings of the reading direction: `\\u202egpj.exe` is shown as `exe.jpg`
==========================  =======================================================================================

All else is text, though `str.isprintable` denies it: the joiners without which Persian, Sinhala and families of emoji
are spelt wrong (U+200C, U+200D), the wide space of Japanese (U+3000), the space that holds a number to its sign
(U+00A0), marks of direction (U+200E, U+200F), and whatever a later Unicode adds, which is unassigned here and now: a
name that one host takes must not be refused by another, whose Python is older.

Letters with accents have two spellings, composed (NFC) and apart (NFD, in file names from a Mac), which look the same:
where names are compared both are the same name.
"""

import unicodedata

_DIRECTION = frozenset(map(chr, [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]))
_LINES = frozenset("\u2028\u2029")


def fault(text: str) -> str:
    """What the first character of a text is that no name may have, in words with an article; nothing if it has none.

    `expected a name of one line, found {fault}` and `the name has {fault}` are sentences.
    """
    return next(filter(None, map(_fault, text)), "")


def visible(text: str) -> str:
    """Text with a space for every character that no name may have: on a page, in a plot, on a terminal.

    For what was written before the rule, and what is no name, such as the metadata of a stranger's file.
    """
    return "".join(" " if _fault(character) else character for character in text)


def without_faults(text: str) -> str:
    """Text without the characters that no name may have, spelt otherwise as it was."""
    return "".join(character for character in text if not _fault(character))


def named(name: str, width: int = 100) -> str:
    """A name that others made up, as part of a message: on one line, and not a page long."""
    if not fault(name) and len(name) <= width:
        return name
    return ascii(name) if len(name) <= width else f"{name[:width]!a} …"


def folded(text: str) -> str:
    """A text as it is compared with others: in any case, and whether its letters are composed or have accents apart.

    Canonical caseless matching (Unicode, definition D145), composed at the end.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def spellings(text: str) -> list[str]:
    """A text as it is, then its composed spelling and that with accents apart, as far as these differ from it.

    For what is compared with texts that were stored as somebody spelt them.
    """
    return list(dict.fromkeys([text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)]))


def _fault(character: str) -> str:
    if "\x20" <= character <= "\x7e":
        return ""
    code = f"U+{ord(character):04X}"
    if character in _DIRECTION:
        return f"a control of the reading direction ({code})"
    if character in _LINES:
        return f"a line separator ({code})"
    match unicodedata.category(character):
        case "Cc":
            return f"a control character ({code})"
        case "Cs":
            return f"a lone surrogate ({code}), as of bytes that are not UTF-8"
    return ""
