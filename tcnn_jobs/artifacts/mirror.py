"""Replication of an attempt's files to the object store: resume points for failover to another host, then the result.

Files are frozen before they are hashed and sent, since the job's process goes on writing. The manifest comes last and
names only what is there; what it no longer names goes after it, and is tried again if it cannot be removed.
"""

import contextlib
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import structlog

from tcnn.errors import one_line, storage_errors
from tcnn.files import file_digest
from tcnn_jobs.artifacts.bucket import Bucket, BucketError
from tcnn_jobs.artifacts.layout import Manifest, file_key, manifest_key
from tcnn_jobs.model.jobs import Artifact, Result

log = structlog.stdlib.get_logger("tcnn.mirror")

RUNS = ("run", "run/baseline")
STATE = (
    "conversion.json", *(f"{run}/{file}" for run in RUNS for file in ("config.json", "metrics.jsonl", "summary.csv")),
)  # fmt: skip
MODELS = (
    "converted.safetensors",
    "run/converted.safetensors",
    *(f"{run}/{file}.safetensors" for run in RUNS for file in ("best", "last")),
)
RESULTS = ("evaluation.json", "run/before-after.json", "log.txt")
POINTS = "resume/step-*.safetensors"
_NO_LINKS = {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
"""What file systems without hard links answer: FAT, many of FUSE, some of networks."""


class _Sent(NamedTuple):
    """A file as it was last uploaded: (inode, size, mtime in ns), which tell a change, and the artifact."""

    stamp: tuple[int, int, int]
    file: Artifact


class Mirror:
    """Uploads one attempt's files. Not thread-safe; `update` and `publish` raise `BucketError`, `StorageError`, and
    `Stopped` once `stop` is set.

    Args:
        others: keys that attempts of the same number have, which were set aside: objects that are not to be removed.
    """

    def __init__(self, bucket: Bucket, attempt: Path, job: str, claim: int, others: Collection[str] = ()) -> None:
        self._bucket, self._attempt = bucket, attempt
        self._job, self._claim, self._others = job, claim, frozenset(others)
        self._sent: dict[str, _Sent] = {}
        self._superseded: set[str] = set()
        """Keys that the manifest named once, and whose objects may still be there."""

    def update(self, stop: threading.Event) -> None:
        """Upload what has changed since the last call (records, models, the newest resume point), then the manifest."""
        before = dict(self._sent)
        there: dict[str, _Sent] = {}
        for name in self._names():
            with contextlib.suppress(FileNotFoundError):  # replaced or removed by the job just now
                there[name] = self._send(name, stop)
        if there != before:
            manifest = Manifest(files=tuple(sent.file for _, sent in sorted(there.items())))
            self._bucket.put_text(manifest_key(self._job, self._claim), manifest.model_dump_json(), stop)
            self._sent = there
            self._superseded |= {file_key(sent.file) for sent in before.values()} - self._others
        self._superseded -= {file_key(sent.file) for sent in there.values()}
        if self._superseded:
            self._remove()

    def publish(self, result: Result, stop: threading.Event) -> None:
        """Upload everything; raises `BucketError` unless each file of the result is stored as announced."""
        self.update(stop)
        sent = {one.file.path: one.file for one in self._sent.values()}
        for file in result.files:
            found = sent.get(file.path)
            if found is None or found.sha256 != file.sha256:
                raise BucketError(f"{file.name}: not what was announced when it was to be sent", again=True)

    def _remove(self) -> None:
        """What stays is tried again by the next update, and swept after the last: no result depends on it."""
        try:
            self._bucket.remove(*self._superseded)
        except BucketError as error:
            log.warning("could not remove", job=self._job, objects=len(self._superseded), problem=one_line(error))
        else:
            self._superseded = set()

    def _names(self) -> Iterator[str]:
        """Paths in upload order. Resume points first: newer records are truncated to them, older ones lack rows."""
        for run in RUNS:
            points = sorted((self._attempt / run).glob(POINTS), reverse=True)
            if points:
                yield str(points[0].relative_to(self._attempt))
        yield from (name for name in (*STATE, *MODELS, *RESULTS) if (self._attempt / name).is_file())

    def _send(self, name: str, stop: threading.Event) -> _Sent:
        with self._frozen(self._attempt / name) as (path, stamp):
            known = self._sent.get(name)
            if known is not None and known.stamp == stamp:
                return known
            digest = file_digest(path)
            place = f"{self._job}/{self._claim}/{name}"
            file = Artifact(name=path.name, path=place, size=path.stat().st_size, sha256=digest)
            if known is None or known.file != file:
                self._bucket.put(path, file_key(file), digest, stop)
            return _Sent(stamp, file)

    @contextlib.contextmanager
    def _frozen(self, source: Path) -> Iterator[tuple[Path, tuple[int, int, int]]]:
        """A snapshot of a file, and its version: a hard link of a model, which is replaced whole; a copy of a record,
        and of a model where the file system has no links.

        It lies in the attempt's own directory and goes with it, should this process be killed meanwhile.
        """
        stamp = _stamp(source.stat())
        with (
            storage_errors(Path(source.name)),
            tempfile.TemporaryDirectory(prefix=".mirror_", dir=self._attempt) as folder,
        ):
            path = Path(folder) / source.name
            if source.suffix != ".safetensors":
                shutil.copyfile(source, path)
            else:
                stamp = _stamp(_linked(source, path))
            yield path, stamp


def _linked(source: Path, path: Path) -> os.stat_result:
    """The version of a file that now lies at `path`, too."""
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        return path.stat()
    with source.open("rb") as whole, path.open("xb") as copy:  # whatever takes its place, this one stays whole
        shutil.copyfileobj(whole, copy, 1 << 20)
        return os.fstat(whole.fileno())


def _stamp(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
