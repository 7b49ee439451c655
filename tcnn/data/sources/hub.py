"""Read Hugging Face data sets, from the hub or a folder: `hfds/NAME`, `hfds/FOLDER`, `hfds/NAME:CONFIG`.

timm's reader takes the names of the columns for granted; here they are found by their type.
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy
from numpy.typing import NDArray
from PIL import Image

from tcnn.data.decode import decode
from tcnn.data.sources.names import choose_split
from tcnn.data.sources.source import Found, check_indices, first_places, number
from tcnn.errors import DownloadError, EnvironmentFailure, RequestError, one_line, shorten
from tcnn.hugging_face import offline_if_unreachable, quiet_hub

MODES = {None: False, "RGB": False, "RGBA": False, "L": True, "LA": True}
"""Modes that a column of images may ask for, and whether its images are made grey."""


class HubSource:
    """`Source` of rows of an Arrow table, memory-mapped: worker processes share it."""

    def __init__(self, rows: Any, column: str, spec: str, grey: bool) -> None:
        self.rows = rows
        self.column = column
        self.spec = spec
        self.grey = grey

    def filename(self, index: int) -> str:
        # Of itself the path tells no image from another: where the bytes lie in the table it is the last part only.
        path = Path((self.rows[index][self.column] or {}).get("path") or "")
        return "/".join((self.spec, str(index), *path.parts[-2:]))

    def stamp(self, index: int) -> str:
        # By their names the images of all splits, and of what is saved there anew, may be the same.
        return str(self.rows._fingerprint)

    def keys(self) -> Sequence[str] | None:
        # Of the path its last part alone, which is what stays when the bytes are moved into the table.
        paths = self.rows.flatten().with_format(None)[f"{self.column}.path"][:]
        return [Path(path or "").stem for path in paths] if any(paths) else None

    def identities(self) -> NDArray[numpy.int64]:
        """Rows are one where they lie in one place of the memory, also of tables that are put together."""
        known: list[str | tuple[int, int]] = []
        for place, chunk in enumerate(self.rows.data.column(self.column).chunks):
            content, paths = chunk.field("bytes"), chunk.field("path").to_pylist()
            begin, first = getattr(content.buffers()[1], "address", -place), content.offset
            inside = content.is_valid().to_pylist()
            known += [(begin, first + row) if inside[row] or not path else path for row, path in enumerate(paths)]
        chosen = self.rows._indices  # what select() and interleave_datasets() have left of the table
        return first_places(known if chosen is None else (known[row] for row in chosen.column(0).to_pylist()))

    def sizes(self) -> None:
        return None

    def open(self, index: int) -> BinaryIO | Image.Image:
        image = self.rows[index][self.column]
        if not image:
            raise ValueError("no image in this row")
        file = BytesIO(image["bytes"] or Path(image["path"]).read_bytes())
        return decode(file, "L") if self.grey else file


def open_hub(spec: str, split: str) -> Found:
    """Open a data set with an image and a class column; raises `RequestError`, `DownloadError` without a network."""
    try:
        import datasets  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError as error:
        raise EnvironmentFailure("hfds/ needs the datasets library: pip install 'tcnn[data]'") from error
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    where = f"hfds/{spec}"
    here = Path(spec).expanduser().exists()  # of a folder nothing is asked
    with nullcontext() if here else offline_if_unreachable(), quiet_hub():
        rows, chosen = _load(datasets, spec, split, where)
    return rows_found(rows, where, chosen)


def rows_found(rows: Any, where: str, chosen: str | None) -> Found:
    """Rows as a data set, its columns found by their types; raises `RequestError`."""
    import datasets

    image = next((name for name, kind in rows.features.items() if isinstance(kind, datasets.Image)), None)
    classes = [name for name, kind in rows.features.items() if isinstance(kind, datasets.ClassLabel)]
    label = "label" if "label" in rows.features else classes[0] if len(classes) == 1 else None
    if image is None or label is None:
        columns = ", ".join(rows.features)
        raise RequestError(f"{where}: expected an image column and a column `label`; its columns are {columns}")
    names, labels = _labels(rows, label, where)
    mode = rows.features[image].mode
    if mode not in MODES:
        raise RequestError(
            f"{where}: expected images of mode RGB or L, found {mode}; give its column another: "
            f"cast_column({image!r}, datasets.Image(mode='RGB'))"
        )
    rows = rows.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    return Found(names, labels, HubSource(rows, image, where, MODES[mode]), chosen)


def _load(datasets: Any, spec: str, split: str, where: str) -> tuple[Any, str | None]:
    """The rows of a split, and its name."""
    folder = Path(spec).expanduser()
    name, _, config = spec.partition(":") if not folder.exists() else (str(folder), "", "")
    if (name[0] in "/.~" or name.count("/") > 1) and not Path(name).expanduser().exists():
        raise RequestError(f"{where}: no such folder: {name}")  # nor can one of the hub's be called so
    try:
        if (folder / "dataset_dict.json").is_file():
            return choose_rows(datasets.load_from_disk(str(folder)), split, where)
        if (folder / "state.json").is_file():
            return datasets.load_from_disk(str(folder)), None
        available = datasets.get_dataset_split_names(name, config or None)
        chosen = _choose(available, split, where)
        return datasets.load_dataset(name, config or None, split=chosen or available[0]), chosen
    except (RequestError, MemoryError):
        raise
    except datasets.exceptions.DatasetNotFoundError as error:
        raise RequestError(f"{where}: no such data set on the hub or on the disk ({one_line(error)})") from error
    except OSError as error:
        if folder.exists():
            raise RequestError(f"{where}: cannot be read ({one_line(error)})") from error
        raise DownloadError(
            f"{where}: cannot be fetched ({one_line(error)}); connect, or fill the cache (HF_HOME) on a machine that is"
        ) from error
    except Exception as error:  # KeyError and TypeError, too, where a file that describes the set is damaged
        why = f"no {error} in it" if isinstance(error, KeyError) else one_line(error.__cause__ or error)
        raise RequestError(f"{where}: cannot be read ({why})") from error


def choose_rows(splits: Any, split: str, where: str) -> tuple[Any, str | None]:
    """The rows of a split of a `DatasetDict`, and its name."""
    chosen = _choose(splits, split, where)
    return splits[chosen or next(iter(splits))], chosen


def _choose(available: Iterable[str], split: str, where: str) -> str | None:
    """`choose_split` of what has at least one."""
    names = list(available)
    if not names:
        raise RequestError(f"{where}: has no split at all, so no images")
    return choose_split(names, split, where)


def _labels(rows: Any, column: str, where: str) -> tuple[tuple[str, ...], Any]:
    values = rows.with_format(None)[column][:]
    if not values:
        raise RequestError(f"{where}: no images")
    wrong = [value for value in values if not isinstance(value, int | str | None)]
    if wrong:
        raise RequestError(
            f"{where}: expected one class for every image in `{column}`, a number or a name; "
            f"found {shorten(str(wrong[0]), 40)}"
        )
    missing = sum(value in (None, -1, "") for value in values)
    if missing:
        raise RequestError(
            f"{where}: {missing} of {len(values)} rows have no class in `{column}`; choose another split"
        )
    names = getattr(rows.features[column], "names", None)
    if names:
        return tuple(names), numpy.asarray(values, dtype=numpy.int64)
    if all(isinstance(value, int) for value in values):
        highest = check_indices(values, where)
        return tuple(str(index) for index in range(highest + 1)), numpy.asarray(values, dtype=numpy.int64)
    return number([str(value) for value in values])
