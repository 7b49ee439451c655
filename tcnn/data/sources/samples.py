"""The samples of a WebDataset shard: their images, each with its class.

The files of one sample share their name up to its first dot: `0001.jpg` is the image, `0001.cls` its class, a number or
a name, or `0001.json` has it under `label`. As in webdataset, a sample is a run of files beside each other, and its
name may come again in the shard, as where two were joined. Unlike there, a name that does not come again may have its
image in one place and its class in another, as where all images were packed before all classes.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from tcnn.data.sources.names import EXTENSIONS, is_image, is_junk, is_left_out
from tcnn.data.sources.tar import Member, members_of
from tcnn.errors import RequestError, readable

KEY = re.compile(r"^((?:.*/)?[^./]+)\.([^/]+)$")
"""Sample and field of a member's name, as webdataset separates them."""
LABELS = ("cls", "json")

Fields = dict[str, Member]
"""The files of one sample by what follows the first dot of their names."""


class Sample(NamedTuple):
    """An image in a shard: where its `size` bytes begin, and its class as written there.

    `name` is that of its file; where this comes again, with a number behind it, as images are known by their names.
    Without a label it is what is left out: the first file of a sample that has no image, and may be missed.
    """

    name: str
    offset: int
    size: int
    label: str | None


def samples(handle: BinaryIO, shard: str) -> list[Sample]:
    """Index the samples of one shard in its order. Raises `RequestError` for an image without a label."""
    runs: list[tuple[str, Fields]] = []
    written: dict[Member, bytes] = {}
    for member in members_of(handle, shard):
        match = KEY.match(member.name)
        if match and not member.folder and not is_junk(member.name):
            key, field = match[1], match[2].lower()
            if not runs or runs[-1][0] != key or field in runs[-1][1]:
                runs.append((key, {}))
            runs[-1][1][field] = member
            if field in LABELS:  # now that it is near: in a store every way back is a request
                handle.seek(member.offset)
                written[member] = handle.read(member.size)
    found = []
    times: Counter[str] = Counter()
    for key, fields in joined(runs):
        image = _image(fields)
        if image:
            label = _label(shard, key, {field: written[fields[field]] for field in LABELS if field in fields})
            times[image.name] += 1
            name = image.name if times[image.name] == 1 else f"{image.name}#{times[image.name]}"
            found.append(Sample(name, image.offset, image.size, label))
        elif missed := [member.name for member in fields.values() if is_image(member.name) or is_left_out(member.name)]:
            found.append(Sample(missed[0], 0, 0, None))
    return found


def joined(runs: Sequence[tuple[str, Fields]]) -> Iterator[tuple[str, Fields]]:
    """Runs as samples: those of one name are put together if they are parts of one sample, in the place of the first.

    They are not, if one is a sample by itself, more than one has an image, or a field comes again.
    """
    by_key: dict[str, list[Fields]] = {}
    for key, fields in runs:
        by_key.setdefault(key, []).append(fields)
    for key, fields in runs:
        parts = by_key[key]
        whole = any(_image(part) and set(LABELS) & set(part) for part in parts)
        images = sum(_image(part) is not None for part in parts)
        names = [name for part in parts for name in part]
        if len(parts) == 1 or whole or images > 1 or len(set(names)) < len(names):
            yield key, fields
        elif fields is parts[0]:
            yield key, {name: member for part in parts for name, member in part.items()}


def _image(fields: Fields) -> Member | None:
    return next((member for field, member in fields.items() if f".{field}" in EXTENSIONS), None)


def _label(shard: str, key: str, written: dict[str, bytes]) -> str:
    for field, content in written.items():
        said = content.decode(errors="surrogateescape").strip()  # no name, and refused, unlike a sign for all of them
        if field == "cls" and said:
            return said
        try:
            value = json.loads(said)
        except ValueError:
            value = None
        value = value.get("label", value.get("cls")) if isinstance(value, dict) else None
        if isinstance(value, int | str):
            return str(value)
        break
    name = readable(key)
    raise RequestError(
        f"{shard}/{name}: an image without a label; expected {name}.cls, or {name}.json with a label, beside it"
    )
