"""Read WebDataset shards, on the disk or in object storage, indexed once for random access.

The webdataset library reads shards as a stream, whose order depends on the number of workers and cannot be resumed at a
step.
"""

import json
import re
from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy

from tcnn.data.sources.names import canonical, choose_split, is_junk, left_out_note, sort_key, words
from tcnn.data.sources.remote import RemoteSource, expand_pattern, index_shards, is_remote, read_object
from tcnn.data.sources.samples import Sample, samples
from tcnn.data.sources.source import Found, check_indices, number
from tcnn.data.sources.tar import UNPACK, TarSource, is_compressed
from tcnn.errors import EnvironmentFailure, RequestError, one_line
from tcnn.formatting import some

Shard = TypeVar("Shard", Path, str)

NUMBER = re.compile(r"-?[0-9]+")
NAME_FILES = ("classes.txt", "classnames.txt")


def open_shards(spec: str, split: str) -> Found:
    """Open the shards in a folder, one archive, or those of a pattern (`train-{000..127}.tar`, `*.tar`).

    A URL (`s3://bucket/train-{000..127}.tar`) names shards in object storage, which are read there. Number labels are
    indices, named by the lines of a `classes.txt` beside the shards if there is one. Raises `RequestError`, and
    `DownloadError` when the storage does not answer.
    """
    if is_remote(spec):
        urls, chosen = find_remote(spec, split)
        found = index_shards(urls, lambda handle: samples(handle, f"wds/{spec}"), Sample)
    else:
        shards, chosen = find_shards(spec, split)
        found = [_index(shard) for shard in shards]
    placed = [(place, sample) for place, inside in enumerate(found) for sample in inside]
    left_out = left_out_note([one.name for _, one in placed if one.label is None], "sample", "NAME.jpg or the like")
    labels = [one.label for _, one in placed if one.label is not None]
    if not labels:
        instead = f" ({left_out})" if left_out else ""
        raise RequestError(
            f"wds/{spec}: no images in its shards{instead}; a sample is NAME.jpg with NAME.cls or NAME.json"
        )
    where = [place for place, one in placed if one.label is not None]
    images = [(one.name, one.offset, one.size) for _, one in placed if one.label is not None]
    if is_remote(spec):
        folder = urls[0].rpartition("/")[0]
        names, numbers = _names(labels, folder, lambda name: read_object(f"{folder}/{name}"))
        return Found(names, numbers, RemoteSource(urls, where, images), chosen, left_out)
    beside = shards[0].parent
    names, numbers = _names(labels, str(beside), lambda name: _content(beside / name))
    return Found(names, numbers, TarSource(list(map(str, shards)), where, images), chosen, left_out)


def find_remote(spec: str, split: str) -> tuple[list[str], str | None]:
    """The URLs of a split's shards, and its name; in a folder those of its `*.tar` whose names contain the split.

    Raises `RequestError`, `DownloadError`, and `EnvironmentFailure` if braces cannot be expanded.
    """
    if spec.endswith(".tar"):
        found = [url for pattern in _expand_braces(spec) for url in expand_pattern(pattern)]
        if not found:
            raise RequestError(f"wds/{spec}: no such shard in the store")
        return found, None
    if is_compressed(spec):
        raise RequestError(f"wds/{spec}: expected uncompressed tar archives; {UNPACK}")
    found = expand_pattern(f"{spec.rstrip('/')}/*.tar")
    if not found:
        raise RequestError(f"wds/{spec}: expected shards (*.tar) there, found none")
    return _of_split(found, split, spec)


def find_shards(spec: str, split: str) -> tuple[list[Path], str | None]:
    """The archives of a split, in natural order, and its name.

    Raises `RequestError`, and `EnvironmentFailure` if braces cannot be expanded.
    """
    if spec.startswith("pipe:"):
        raise RequestError(f"wds/{spec}: expected shards that can be read at any place, found a pipe; name their files")
    path = Path(spec).expanduser()
    if not path.is_dir():
        patterns = _expand_braces(str(path))
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
    compressed = sorted(entry.name for entry in path.iterdir() if is_compressed(entry.name) and not is_junk(entry.name))
    if compressed:
        raise RequestError(f"wds/{spec}: {compressed[0]}: expected an uncompressed tar archive; {UNPACK}")
    shards = sorted((shard for shard in path.glob("*.tar") if not is_junk(shard.name)), key=lambda s: sort_key(s.name))
    if not shards:
        raise RequestError(f"wds/{spec}: expected shards (*.tar) in {path}, found none")
    if within:
        return shards, within
    return _of_split(shards, split, spec)


def _of_split(shards: Sequence[Shard], split: str, spec: str) -> tuple[list[Shard], str | None]:
    """The shards whose names contain a word for the split, and which one; all of them where no name has any.

    Raises `RequestError` where some have none: which split they are of is not known.
    """
    by_split: dict[str, list[Shard]] = {}
    for shard in shards:
        stem = PurePosixPath(str(shard)).stem
        by_split.setdefault(next((word for word in words(stem) if canonical(word)), ""), []).append(shard)
    chosen = choose_split([name for name in by_split if name], split, f"wds/{spec}")
    if chosen and "" in by_split:
        stray, named = (PurePosixPath(str(by_split[name][0])).name for name in ("", chosen))
        raise RequestError(
            f"wds/{spec}: {stray} has no split in its name, as {named} has, so nothing tells what it is of; name the "
            "shards by a pattern, such as wds/DIR/train-*.tar, or move it away"
        )
    return (by_split[chosen] if chosen else list(shards)), chosen


def _index(shard: Path) -> list[Sample]:
    try:
        with shard.open("rb") as handle:
            return samples(handle, str(shard))
    except OSError as error:
        raise RequestError(f"{shard}: expected an uncompressed, whole tar archive; {one_line(error)}") from error


def _names(
    labels: Sequence[str], folder: str, read: Callable[[str], bytes | None]
) -> tuple[tuple[str, ...], "numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]"]:
    """Class names and labels: numbers are indices, anything else is a name. `read` returns a file's bytes."""
    if not all(NUMBER.fullmatch(label) for label in labels):
        return number(labels)
    values = [int(label[:100]) for label in labels]  # far beyond any index, and Python refuses thousands of digits
    highest = check_indices(values, folder)
    indices = numpy.array(values, dtype=numpy.int64)
    for name in NAME_FILES:
        found = read(name)
        if found is not None:
            names = _lines(found, f"{folder}/{name}")
            if len(names) <= highest:
                raise RequestError(
                    f"{folder}/{name}: names {some(len(names), 'class')}; the shards use label {highest}"
                )
            return names, indices
    return tuple(str(index) for index in range(highest + 1)), indices


def _lines(content: bytes, file: str) -> tuple[str, ...]:
    """The names in a file, a line each. Raises `RequestError` for an empty line, as those behind it would move up."""
    try:
        names = tuple(map(str.strip, content.decode("utf-8-sig").rstrip().splitlines()))
    except UnicodeDecodeError as error:
        raise RequestError(f"{file}: expected names in UTF-8, a line each; {one_line(error)}") from error
    if "" in names:
        raise RequestError(f"{file}: line {names.index('') + 1} is empty; expected the name of class {names.index('')}")
    return names


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


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


def _expand_braces(pattern: str) -> list[str]:
    if "{" not in pattern:
        return [pattern]
    try:
        from braceexpand import braceexpand  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise EnvironmentFailure("braces in the name of shards need braceexpand: pip install 'tcnn[data]'") from error
    try:
        return list(braceexpand(pattern))
    except ValueError as error:
        raise RequestError(f"wds/{pattern}: braces that do not close; expected train-{{000..127}}.tar") from error
