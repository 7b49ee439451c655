"""An object store by its URL (`s3://bucket/prefix`, or any other that fsspec knows): whole objects, or none.

Nothing here is left to chance: what was sent is read back and hashed, what is fetched is hashed on its way, and what
fails is tried again, each time after twice the pause. An object that is refused for want of rights is not tried again.
"""

import errno
import hashlib
import random
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import fsspec
from fsspec.callbacks import Callback
from tenacity import Retrying, retry_if_not_exception_type, sleep_using_event, stop_after_attempt, wait_exponential

from tcnn.errors import EnvironmentFailure, RequestError, Stopped, StorageError, no_library, one_line, storage_errors
from tcnn_jobs.artifacts.local import growing

T = TypeVar("T")

TRIES = 6
"""Of one transfer: with a first pause of one second, half a minute in all."""
PIECE = 16 << 20
"""Bytes of one part of a multipart upload; four are on their way at once."""
PROBE = "writable.txt"
"""The key of an object that is written to see whether anything can be."""
WRITTEN = 60.0
"""Seconds for which a store that was found to be writable is taken for that, unless it refuses something meanwhile."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NEVER = threading.Event()
"""For those who do not want to stop."""
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "max_concurrency": 4,
        "config_kwargs": {
            "connect_timeout": 5,
            "read_timeout": 30,
            "retries": {"total_max_attempts": 2},
            "signature_version": "s3v4",  # of links too, which would else be signed in a way that newer regions refuse
        },
    },
    "file": {"auto_mkdir": True},
}
_SENDING: dict[str, dict[str, Any]] = {"s3": {"chunksize": PIECE}}


class BucketError(StorageError):
    """The store did not do what it was asked for; `again` says whether that may change by itself."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


class ObjectGone(RequestError):
    """There is no object of this key."""


class Object(NamedTuple):
    """What a listing says: bytes, and seconds since 1970, 0 if the store does not tell."""

    size: int
    modified: float


class Bucket:
    """Objects below a URL. Safe in many threads; every method raises `BucketError`, and `Stopped` once `stop` is set.

    Args:
        pause: seconds before the second try; doubled before every next one.

    Raises `RequestError` for a URL that nothing can read, `EnvironmentFailure` if its library is not installed.
    """

    def __init__(self, url: str, pause: float = 1.0) -> None:
        self.url = url.rstrip("/")
        self._pause = pause
        scheme, slashes, _ = url.partition("://")
        options = {"use_listings_cache": False, "skip_instance_cache": True, **_OPTIONS.get(scheme, {})}
        try:
            if not slashes:
                raise ValueError("there is no :// in it")
            self._fs, root = fsspec.core.url_to_fs(url, **options)
        except ImportError as error:
            raise EnvironmentFailure(f"{url}: {no_library(scheme, error)}") from error
        except ValueError as error:
            reason = one_line(error)
            raise RequestError(f"{url}: expected s3://bucket/prefix or another URL of fsspec ({reason})") from None
        self._root = root.rstrip("/")
        self._scheme = scheme
        self._writable_until = float("-inf")

    def put(self, local: Path, key: str, sha256: str, stop: threading.Event = NEVER) -> None:
        """Send a file, and see that the store gives the same bytes back."""

        def send() -> None:
            self._send(local, key, stop)
            if (found := self._digest(key, stop)) != sha256:
                raise OSError(f"expected SHA-256 {sha256[:12]}… back, got {found[:12]}…")

        self._tried("send", key, send, stop)

    def put_text(self, key: str, text: str, stop: threading.Event = NEVER, tries: int | None = None) -> None:
        """Write a small object anew. `tries`: as in `text`."""
        self._tried("write", key, lambda: self._write(key, text), stop, tries)

    def get(self, key: str, local: Path, sha256: str, stop: threading.Event = NEVER) -> None:
        """Fetch an object into a new file; raises `ObjectGone`, and `StorageError` if this host's disk is full."""

        def fetch() -> None:
            try:
                self._fs.get_file(self._path(key), str(local), callback=_StopOn(stop))
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                with storage_errors(Path(key.rpartition("/")[2])):  # no store is full when it is read
                    raise
            with local.open("rb") as handle:
                if (found := _hashed(handle, stop)) != sha256:
                    raise OSError(f"expected SHA-256 {sha256[:12]}…, got {found[:12]}…")

        self._tried("fetch", key, fetch, stop)

    def text(self, key: str, stop: threading.Event = NEVER, tries: int | None = None) -> str:
        """A small object; raises `ObjectGone`. `tries`: how often it is tried, default `TRIES` times."""
        return str(self._tried("read", key, lambda: self._fs.cat_file(self._path(key)).decode(), stop, tries))

    def open(self, key: str, block: int = 1 << 20) -> BinaryIO:
        """An object as a file that can seek and reads so many bytes at once; raises fsspec's own errors."""
        handle: BinaryIO = self._fs.open(self._path(key), "rb", block_size=block, cache_type="readahead")
        return handle

    def link(self, key: str, seconds: float, **answer: str) -> str:
        """A URL of S3 that gives an object to whoever has it, for so many seconds, with these headers."""
        headers = {f"Response{name.title().replace('_', '')}": value for name, value in answer.items()}

        def sign() -> str:
            return str(self._fs.sign(self._path(key), expiration=round(seconds), **headers))

        return self._tried("sign a link to", key, sign, NEVER)

    def look(self, key: str) -> Object:
        """An object's size and time; raises `ObjectGone`."""
        info = self._tried("look at", key, lambda: self._fs.info(self._path(key)), NEVER)
        return Object(int(info["size"]), _modified(info))

    def keys(self, prefix: str, stop: threading.Event = NEVER) -> dict[str, Object]:
        """Every object whose key begins with `prefix/`."""
        place = self._path(prefix)

        def find() -> dict[str, Any]:
            try:
                return dict(self._fs.find(place, detail=True))
            except FileNotFoundError:
                return {}

        found = self._tried("list", prefix, find, stop)
        return {path[len(self._root) + 1 :]: Object(int(info["size"]), _modified(info)) for path, info in found.items()}

    def remove(self, *keys: str) -> None:
        """Delete objects that may be gone already."""

        def drop() -> None:
            for key in keys:
                try:
                    self._fs.rm_file(self._path(key))
                except FileNotFoundError:
                    continue

        self._tried("delete", keys[0] if keys else "", drop, NEVER)

    def drop_unfinished(self, seconds: float) -> int:
        """Abort uploads in parts that began so long ago and were never joined; returns how many. Of S3 alone."""
        if self._scheme != "s3":
            return 0
        bucket, prefix, _ = self._fs.split_path(f"{self._root}/")

        def drop() -> int:
            place: dict[str, str] = {}
            dropped = 0
            while True:
                found = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **place)
                for one in found.get("Uploads", ()):
                    if time.time() - one["Initiated"].timestamp() > seconds:
                        named = {"Bucket": bucket, "Key": one["Key"], "UploadId": one["UploadId"]}
                        self._fs.call_s3("abort_multipart_upload", **named)
                        dropped += 1
                if not found.get("IsTruncated"):
                    return dropped
                place = {"KeyMarker": found["NextKeyMarker"], "UploadIdMarker": found["NextUploadIdMarker"]}

        return self._tried("list", "unfinished uploads", drop, NEVER)

    def check(self) -> None:
        """Raise `BucketError` if it cannot be listed just now, or could not be written and read lately; tried once."""
        try:
            self._fs.ls(self._root, detail=False)
        except FileNotFoundError:  # an empty prefix, or no bucket: which of the two only writing tells
            self._writable_until = float("-inf")
        except Exception as error:
            raise self._error("list", "", error) from error
        if time.monotonic() >= self._writable_until:
            self.put_text(PROBE, "This object is written now and then, to see whether the store can be.\n", tries=1)
            try:  # by its first bytes: for a whole object its size is asked for, too
                self._tried("read", PROBE, lambda: self._fs.cat_file(self._path(PROBE), start=0, end=4), NEVER, 1)
            except ObjectGone as error:
                raise self._error("read", PROBE, error) from error
            self._writable_until = time.monotonic() + WRITTEN

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _send(self, local: Path, key: str, stop: threading.Event) -> None:
        """An object store shows an object when it is whole, and keeps it; a folder shows a file while it grows."""
        path = self._path(key)
        if self._scheme != "file":
            self._fs.put_file(str(local), path, callback=_StopOn(stop), **_SENDING.get(self._scheme, {}))
            return
        with growing(Path(path)) as temporary:
            self._fs.put_file(str(local), str(temporary))

    def _write(self, key: str, text: str) -> None:
        path = self._path(key)
        if self._scheme != "file":
            self._fs.pipe_file(path, text.encode())
            return
        with growing(Path(path)) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def _digest(self, key: str, stop: threading.Event) -> str:
        with self.open(key, PIECE // 2) as handle:
            return _hashed(handle, stop)

    def _tried(self, what: str, key: str, call: Callable[[], T], stop: threading.Event, tries: int | None = None) -> T:
        def once() -> T:
            if stop.is_set():
                raise Stopped("asked to stop")
            return call()

        try:
            return self._tries(once, stop, tries or TRIES)
        except (Stopped, StorageError):
            raise
        except FileNotFoundError as error:
            if what in ("fetch", "read", "look at"):
                raise ObjectGone(f"{key.rpartition('/')[2]}: no longer in the store") from error
            raise self._error(what, key, error, again=False) from error
        except PermissionError as error:
            raise self._error(what, key, error, again=False) from error
        except Exception as error:  # every library of fsspec has errors of its own
            raise self._error(what, key, error) from error

    def _tries(self, call: Callable[[], T], stop: threading.Event, tries: int) -> T:
        """Each pause is about twice the last, and ends when `stop` is set."""
        doubled = wait_exponential(multiplier=self._pause)
        return Retrying(
            retry=retry_if_not_exception_type((Stopped, StorageError, FileNotFoundError, PermissionError)),
            wait=lambda tried: doubled(tried) * random.uniform(0.5, 1),  # noqa: S311 - so that not all come at once
            stop=stop_after_attempt(tries),
            sleep=sleep_using_event(stop),
            reraise=True,
        )(call)

    def _error(self, what: str, key: str, error: Exception, again: bool = True) -> BucketError:
        if what in ("send", "write"):
            self._writable_until = float("-inf")
        name = key.rpartition("/")[2] or "objects"
        return BucketError(f"the store of results: cannot {what} {name} ({one_line(error)})", again=again)


class _StopOn(Callback):  # type: ignore[misc]
    """Ends a transfer between two of its parts; the store then forgets those that it has."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def relative_update(self, inc: int = 1) -> None:
        """A part has arrived."""
        if self._stop.is_set():
            raise Stopped("asked to stop")


def _hashed(handle: BinaryIO, stop: threading.Event) -> str:
    digest = hashlib.sha256()
    while piece := handle.read(1 << 20):
        if stop.is_set():
            raise Stopped("asked to stop")
        digest.update(piece)
    return digest.hexdigest()


def _modified(info: dict[str, Any]) -> float:
    found = info.get("LastModified", info.get("mtime", info.get("updated", 0.0)))
    return found.timestamp() if isinstance(found, datetime) else float(found or 0.0)
