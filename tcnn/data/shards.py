"""WebDataset shards on the disk, indexed once so that any sample can be read at any time.

In a shard the files of one sample share their name up to its first dot: `0001.jpg` is the image, `0001.cls` its class,
a number or a name, or `0001.json` says it under `label`. The webdataset library reads shards as a stream, whose order
depends on the number of workers and cannot be resumed at a step.
"""

import json
import re
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import NamedTuple

import numpy

from tcnn.data.source import (
    EXTENSIONS,
    Found,
    canonical,
    check_indices,
    choose_split,
    is_junk,
    number,
    sort_key,
    words,
)
from tcnn.data.tar import Member, TarSource, members, read_at
from tcnn.errors import EnvironmentFailure, RequestError

KEY = re.compile(r"^((?:.*/)?[^./]+)\.([^/]+)$")
"""A member's sample and field, as webdataset takes them apart."""
LABELS = ("cls", "json")
NAME_FILES = ("classes.txt", "classnames.txt")


class Sample(NamedTuple):
    shard: int
    image: Member
    label: str


def open_shards(spec: str, split: str) -> Found:
    """Every sample of the shards in a folder, of one archive, or of a pattern (`train-{000..127}.tar`, `*.tar`).

    Number labels are indices, named by the lines of a `classes.txt` beside the shards if there is one. Raises
    `RequestError`.
    """
    shards, chosen = find_shards(spec, split)
    found = [sample for place, shard in enumerate(shards) for sample in samples(place, shard)]
    if not found:
        raise RequestError(f"wds/{spec}: no images in its shards; a sample is NAME.jpg with NAME.cls or NAME.json")
    names, labels = _names([sample.label for sample in found], shards[0].parent)
    source = TarSource(shards, (sample.shard for sample in found), [sample.image for sample in found])
    return Found(names, labels, source, chosen)


def find_shards(spec: str, split: str) -> tuple[list[Path], str | None]:
    """The archives of a split, in natural order, and its name.

    Raises `RequestError`, and `EnvironmentFailure` if braces cannot be expanded.
    """
    if "://" in spec or spec.startswith("pipe:"):
        raise RequestError(f"wds/{spec}: shards are read from the disk, at any place; copy them here first")
    path = Path(spec).expanduser()
    if not path.is_dir():
        patterns = _expanded(str(path))
        found = [Path(name) for pattern in patterns for name in (sorted(glob(pattern), key=sort_key) or [pattern])]  # noqa: PTH207
        missing = [shard for shard in found if not shard.is_file()]
        if missing:
            raise RequestError(f"wds/{spec}: no such shard: {missing[0]}")
        return found, None
    info = _info(path)
    if info:
        chosen = choose_split(info, split, f"wds/{spec}")
        return [path / name for name in info[chosen or next(iter(info))]], chosen
    folders = [entry.name for entry in path.iterdir() if entry.is_dir() and canonical(entry.name)]
    within = choose_split(folders, split, f"wds/{spec}") if folders else None
    path = path / within if within else path
    shards = sorted((shard for shard in path.glob("*.tar") if not is_junk(shard.name)), key=lambda s: sort_key(s.name))
    if not shards:
        raise RequestError(f"wds/{spec}: expected shards (*.tar) in {path}, found none")
    if within:
        return shards, within
    by_split: dict[str, list[Path]] = {}
    for shard in shards:
        by_split.setdefault(next((word for word in words(shard.stem) if canonical(word)), ""), []).append(shard)
    chosen = choose_split([name for name in by_split if name], split, f"wds/{spec}")
    return (by_split[chosen] if chosen else shards), chosen


def samples(place: int, shard: Path) -> Iterator[Sample]:
    """The samples of one shard in its order. Raises `RequestError` for an image without a label."""
    fields: dict[str, dict[str, Member]] = {}
    for member in members(shard):
        match = KEY.match(member.name)
        if match and not member.folder and not is_junk(member.name):
            fields.setdefault(match[1], {}).setdefault(match[2].lower(), member)
    for key, parts in fields.items():
        image = next((member for field, member in parts.items() if f".{field}" in EXTENSIONS), None)
        if image:
            yield Sample(place, image, _label(shard, key, parts))


def _label(shard: Path, key: str, parts: dict[str, Member]) -> str:
    field = next((field for field in LABELS if field in parts), None)
    if field:
        text = read_at(shard, parts[field].offset, parts[field].size).decode(errors="replace").strip()
        if field == "cls" and text:
            return text
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        value = value.get("label", value.get("cls")) if isinstance(value, dict) else None
        if isinstance(value, int | str):
            return str(value)
    raise RequestError(f"{shard}/{key}: an image without a label; expected {key}.cls, or {key}.json with a label")


def _names(
    labels: Sequence[str], folder: Path
) -> tuple[tuple[str, ...], "numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]"]:
    """Numbers are indices; anything else is a name."""
    if not all(label.isascii() and label.isdigit() for label in labels):
        return number(labels)
    values = [int(label) for label in labels]
    highest = check_indices(values, str(folder))
    indices = numpy.array(values, dtype=numpy.int64)
    for name in NAME_FILES:
        if (folder / name).is_file():
            lines = (folder / name).read_text(encoding="utf-8").splitlines()
            names = tuple(line.strip() for line in lines if line.strip())
            if len(names) <= highest:
                raise RequestError(f"{folder / name}: names {len(names)} classes; the shards use label {highest}")
            return names, indices
    return tuple(str(index) for index in range(highest + 1)), indices


def _info(folder: Path) -> dict[str, list[str]]:
    """The shards of every split, where timm's `_info.json` lists them."""
    for name in ("_info.json", "info.json"):
        if (folder / name).is_file():
            try:
                splits = json.loads((folder / name).read_text(encoding="utf-8"))["splits"]
                return {split: [str(file) for file in splits[split]["filenames"]] for split in splits}
            except (ValueError, KeyError, TypeError) as error:
                raise RequestError(f"{folder / name}: expected splits with their filenames ({error})") from error
    return {}


def _expanded(pattern: str) -> list[str]:
    if "{" not in pattern:
        return [pattern]
    try:
        from braceexpand import braceexpand  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise EnvironmentFailure("braces in the name of shards need braceexpand: pip install 'tcnn[data]'") from error
    return list(braceexpand(pattern))
