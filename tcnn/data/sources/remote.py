"""Read WebDataset shards in object storage: `s3://bucket/train-000.tar`, or any URL that fsspec supports.

A shard is indexed once, from end to end, and its index is cached on this machine for as long as the object does not
change. Then any image is one range request, so order and resumption are those of shards on the disk. A request that
fails is retried; storage that stays unavailable ends the run, for an image that is skipped would be another run.
"""

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from tcnn.data.sources.names import sort_key
from tcnn.data.sources.source import ArchiveMembers
from tcnn.errors import DownloadError, EnvironmentFailure, RequestError, TcnnError, no_library, one_line
from tcnn.files import write_atomically

T = TypeVar("T")

ATTEMPTS = 6
"""Attempts of one request, with half a minute between the first and the last."""
BLOCK = 8 << 20
"""Bytes per request while a shard is indexed; at least two are in memory, for each of `CONCURRENT_SHARDS`."""
CONCURRENT_SHARDS = 4
"""Number of shards that are indexed at the same time."""
CHANGES = ("ETag", "etag", "mtime", "LastModified", "Last-Modified", "last_modified", "updated", "created")
"""What fsspec's stores call that by which a changed object is known; the index of one without is not kept."""
RULES = 3
"""Number of the rules of what is an image of a shard: an index that was made by others is not used."""
_PAUSE = 1.0


def is_remote(spec: str) -> bool:
    """Whether a name is a URL."""
    return "://" in spec


class RemoteSource(ArchiveMembers):
    """`Source` of members of archives at URLs. Holds no connection, so that worker processes may be forked."""

    def stamp(self, index: int) -> None:
        return None

    def sizes(self) -> None:
        return None

    def open(self, index: int) -> BinaryIO:
        """Fetch an image; raises `DownloadError` when the storage is unavailable."""
        offset, size = self.ranges[index].tolist()
        url = self.archive(index)
        return BytesIO(retry(url, lambda: _read_range(url, offset, size)))


def expand_pattern(pattern: str) -> list[str]:
    """Expand a URL with `*` or `?` into the existing URLs, in natural order; a URL without them is returned itself."""
    if not any(sign in pattern for sign in "*?["):
        return [pattern]
    files, path = filesystem(pattern)
    scheme = pattern.partition("://")[0]
    found = retry(pattern, lambda: files.glob(path))
    return sorted((f"{scheme}://{name}" for name in found), key=sort_key)


def index_shards(urls: Sequence[str], read: Callable[[Any], list[T]], make: Callable[..., T]) -> list[list[T]]:
    """Index of every shard, as `read(file)` finds it, from this machine's cache where possible.

    `make` makes one item from a list of JSON values. Raises `RequestError` for an object that does not exist,
    `DownloadError` for unavailable storage, and what `read` raises.
    """
    with ThreadPoolExecutor(CONCURRENT_SHARDS) as pool:
        return list(pool.map(lambda url: _index_shard(url, read, make), urls))


def read_object(url: str) -> bytes | None:
    """Contents of a small object; None if it does not exist."""
    files, path = filesystem(url)
    try:
        return bytes(retry(url, lambda: files.cat_file(path)))
    except RequestError:
        return None


def _index_shard(url: str, read: Callable[[Any], list[T]], make: Callable[..., T]) -> list[T]:
    files, path = filesystem(url)
    info = retry(url, lambda: files.info(path))
    change = next((str(info[name]) for name in CHANGES if info.get(name)), None)
    name = hashlib.sha256(json.dumps([RULES, url, int(info["size"]), change]).encode()).hexdigest()
    cached = _cache_folder() / f"{name}.json"
    try:
        if change is not None:
            return [make(*item) for item in json.loads(cached.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        pass

    def build() -> list[T]:
        with files.open(path, "rb", block_size=BLOCK, cache_type="readahead") as handle:
            return read(handle)

    found = retry(url, build)
    if change is not None:
        _write_cache(cached, json.dumps(found))
    return found


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tcnn" / "shards"


def _write_cache(path: Path, content: str) -> None:
    """Write to the cache atomically; where that fails the shard is indexed again next time."""
    with suppress(OSError, TcnnError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content, force=True)


def _read_range(url: str, offset: int, size: int) -> bytes:
    files, path = filesystem(url)
    content: bytes = files.cat_file(path, start=offset, end=offset + size)
    if len(content) != size:
        raise OSError(f"expected {size} bytes at {offset}, got {len(content)}")
    return content


def filesystem(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL and the path in it; one per process, since its connections survive no fork."""
    files = _filesystem(url.partition("://")[0], os.getpid())
    return files, files._strip_protocol(url)


@cache
def _filesystem(scheme: str, process: int) -> Any:
    import fsspec

    # The library's own patience would be multiplied by ours.
    options = {"config_kwargs": {"connect_timeout": 10, "retries": {"total_max_attempts": 2}}} if scheme == "s3" else {}
    try:
        return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True, **options)
    except ImportError as error:
        raise EnvironmentFailure(no_library(scheme, error)) from error
    except ValueError as error:
        raise RequestError(f"{scheme}://: expected s3:// or another store of fsspec ({one_line(error)})") from None


def retry(url: str, call: Callable[[], T]) -> T:
    """Call a function, with retries when the storage fails.

    Raises `RequestError` for what does not exist or may not be read, `DownloadError` when the storage stays
    unavailable.
    """
    for number in range(ATTEMPTS):
        try:
            return call()
        except TcnnError:
            raise
        except FileNotFoundError as error:
            raise RequestError(f"{url}: no such object in the store") from error
        except PermissionError as error:
            raise RequestError(f"{url}: the store refuses to give it ({one_line(error)}); check the keys") from error
        except Exception as error:  # every library of fsspec has errors of its own
            if number == ATTEMPTS - 1:
                raise DownloadError(f"{url}: the store does not answer ({one_line(error)})") from error
            time.sleep(_PAUSE * 2**number * random.uniform(0.5, 1))  # noqa: S311 - so that not all come at once
    raise AssertionError("unreachable")
