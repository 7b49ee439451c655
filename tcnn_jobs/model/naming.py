"""Names of things: identifiers, which the service generates, and the labels by which people tell their jobs apart.

Both are checked before they reach a database or a message.
"""

import re
import secrets
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from tcnn.characters import fault, folded
from tcnn.config.base import Frozen

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


MOST_NAME, MOST_TAG, MOST_TAGS, MOST_NOTE = 200, 50, 20, 10_000
"""Characters of a name and of a tag, tags of a job, characters of a note."""
MOST_WORDS = 4000
"""Characters that a search looks through, beside those of the note."""


def _encodable(text: str) -> str:
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("expected text without NUL and lone surrogates")
    return text


def _line(text: str) -> str:
    """One line without blanks around it."""
    text = _encodable(text).strip()
    if wrong := fault(text):
        raise ValueError(f"expected one line of text, found {wrong}; leave it out")
    return text


def _tag(text: str) -> str:
    """So written that `"tag"` in a job's list of tags, which is JSON, is that tag and no part of another one."""
    text = _line(text)
    if not text or set(text) & set(',"\\'):
        raise ValueError("expected at least one character, and no comma, quotation mark or backslash")
    return text


def _once_each(tags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tags))


Name = Annotated[str, Field(max_length=MOST_NAME), AfterValidator(_line)]
Tag = Annotated[str, Field(max_length=MOST_TAG), AfterValidator(_tag)]
Tags = Annotated[tuple[Tag, ...], Field(max_length=MOST_TAGS), AfterValidator(_once_each)]
Note = Annotated[str, Field(max_length=MOST_NOTE), AfterValidator(_encodable)]
Search = Annotated[str, Field(max_length=MOST_NAME), AfterValidator(_encodable)]


class Labels(Frozen):
    """Name, tags and note of a job. In an edit, omitted fields stay unchanged and null removes one."""

    name: Name | None = Field(default=None, description="Name of the job; null or empty: the name of its model.")
    tags: Tags | None = Field(default=None, description="All tags of the job, in order; null or empty: none.")
    note: Note | None = Field(default=None, description="Free text; null or empty: none.")

    def given(self) -> dict[str, Any]:
        """The labels that were said, as a job has them."""
        kept = {"name": self.name or None, "tags": list(self.tags or ()), "note": self.note or None}
        return {name: value for name, value in kept.items() if name in self.model_fields_set}


def words(identifier: str, kind: str, request: Any, labels: dict[str, Any], called: Iterable[str] = ()) -> str:
    """What a search looks through: labels, the job's id and kind, what the things are `called` that its request names
    by their ids, and every text of the request, folded for case and spelling.
    """
    parts = [labels.get("name") or "", *(labels.get("tags") or ()), identifier, kind, *called, *_texts(request)]
    text = "\n".join(parts)[:MOST_WORDS] + "\n" + (labels.get("note") or "")
    return folded(re.sub("[\0\ud800-\udfff]", "", text))


def called_before(before: str, identifier: str, kind: str, request: Any, labels: dict[str, Any]) -> list[str]:
    """What the things are called that the request names, as `words` with these labels had it `before`.

    Some of them may be gone since then: of a job that has ended they can be deleted.
    """
    own = words(identifier, kind, request, labels).split("\n")
    return [line for line in dict.fromkeys(folded(before).split("\n")) if line not in own]


def _texts(request: Any) -> Iterator[str]:
    waiting = [request]  # no recursion: a request may be deep
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(reversed(item.values()))
        elif isinstance(item, list | tuple):
            waiting.extend(reversed(item))
        elif isinstance(item, str):
            yield item
