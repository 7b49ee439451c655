"""Artifacts in an object store that hosts share, with a cache on this host; `open_artifacts` has them there or at home.

What is being worked on lies in `TCNN_HOME/jobs`, as without a store; what has succeeded lies in the store alone.
"""

import hashlib
import secrets
import shutil
import tarfile
import threading
from pathlib import Path

from tcnn.errors import RequestError, storage_errors
from tcnn.files import file_digest
from tcnn_jobs.artifacts.base import Opened, Reference
from tcnn_jobs.artifacts.bucket import NEVER, Bucket, Object, ObjectGone
from tcnn_jobs.artifacts.cache import Cache, Held
from tcnn_jobs.artifacts.layout import (
    MANIFEST,
    TAR_DIGEST,
    Home,
    Manifest,
    checked,
    file_key,
    manifest_key,
    parse,
    upload_digest,
    upload_key,
)
from tcnn_jobs.artifacts.local import LocalArtifacts, remove
from tcnn_jobs.model.jobs import Artifact, Job, Upload
from tcnn_jobs.settings import QueueSettings


class SharedArtifacts:
    """As `Artifacts`, in a bucket."""

    def __init__(self, home: Home, bucket: Bucket, cache: Cache) -> None:
        self.bucket, self.cache = bucket, cache
        self._home, self._here = home, LocalArtifacts(home)

    def add(self, upload: Upload, found: Path) -> Upload:
        """As `Artifacts.add`; it is in the store, and has been read back, before anybody hears of it."""
        digest = upload.sha256
        if upload.kind == "dataset":
            packed = found.with_name(f"{found.name}.tar")
            with storage_errors(Path(upload.name)):
                digest = pack(found, packed)
            upload = upload.model_copy(update={"details": {**upload.details, TAR_DIGEST: digest}})
            self.bucket.put(packed, upload_key(upload.kind, upload.id), digest)
        else:
            self.bucket.put(found, upload_key(upload.kind, upload.id), digest)
        self.cache.adopt(self._name(upload), found)
        return upload

    def remove_upload(self, upload: Upload) -> None:
        """As `Artifacts.remove_upload`."""
        self._here.remove_upload(upload)
        self.bucket.remove(upload_key(upload.kind, upload.id))
        self.cache.drop(self._name(upload))

    def upload(self, upload: Upload) -> Reference:
        """As `Artifacts.upload`."""
        return Reference(
            path=str(self.cache.folder / self._name(upload)),
            key=upload_key(upload.kind, upload.id),
            sha256=upload_digest(upload),
            size=upload.size,
            folder=upload.kind == "dataset",
            before=self._here.upload(upload).path,
        )

    def file(self, file: Artifact) -> Reference:
        """As `Artifacts.file`."""
        path, before = self.cache.folder / f"{file.sha256}{Path(file.name).suffix}", self._here.file(file).path
        return Reference(path=str(path), key=file_key(file), sha256=file.sha256, size=file.size, before=before)

    def hold(self, reference: Reference, stop: threading.Event = NEVER) -> Held:
        """Fetch a reference if need be and keep it until it is released; raises as `Artifacts.path`, and `Stopped`."""
        name = Path(reference.path).name

        def fetch(target: Path) -> None:
            packed = target.with_name(f"{target.name}.tar.tmp") if reference.folder else target
            try:
                with storage_errors(Path(name)):
                    self.bucket.get(reference.key, packed, reference.sha256, stop)
                    if reference.folder:
                        unpack(packed, target)
            except ObjectGone:
                if not Path(reference.before).exists():
                    raise
                remove(target)
                (shutil.copytree if reference.folder else shutil.copyfile)(reference.before, target)
            finally:
                if reference.folder:
                    packed.unlink(missing_ok=True)

        return self.cache.hold(name, reference.size * (2 if reference.folder else 1), fetch)

    def path(self, reference: Reference) -> Path:
        """As `Artifacts.path`; the cache lets no entry go in the first minutes after it was asked for."""
        held = self.hold(reference)
        held.release()
        return held.path

    def open(self, file: Artifact) -> Opened:
        """As `Artifacts.open`: read from the store as it is asked for."""
        try:
            found = self.bucket.look(file_key(file))
        except ObjectGone:
            return self._here.open(file)
        return Opened(self.bucket.open(file_key(file)), found.size, found.modified)

    def link(self, file: Artifact, seconds: float, **answer: str) -> str | None:
        """As `Artifacts.link`; none for what was kept here before there was a store, is gone, or of another size."""
        try:
            found = self.bucket.look(file_key(file))
        except ObjectGone:
            return None
        if found.size != file.size:
            return None
        return self.bucket.link(file_key(file), seconds, **answer)

    def attempts(self, job: str, newest: int) -> list[int]:
        """As `Artifacts.attempts`."""
        return sorted(claim for claim in {*self._here.published(job), *self.published(job)} if claim <= newest)

    def attempt_file(self, job: str, claim: int, name: str) -> Path | None:
        """As `Artifacts.attempt_file`: of a job that runs on another host, what that host has sent last."""
        here = self._here.attempt_file(job, claim, name)
        if here is not None:
            return here
        file = (self.manifest(job, claim) or Manifest()).file(job, claim, name)
        try:
            return self.path(self.file(file)) if file is not None else None
        except ObjectGone:  # replaced by a newer one just now
            return None

    def attempt(self, job: Job, claim: int) -> Path | None:
        """As `Artifacts.attempt`."""
        manifest = self.manifest(job.id, claim)
        if manifest is None:
            return self._here.attempt(job, claim)
        held = self.hold_attempt(job.id, claim, manifest)
        held.release()
        return held.path

    def hold_attempt(self, job: str, claim: int, manifest: Manifest, stop: threading.Event = NEVER) -> Held:
        """All that the store has of an attempt, as a folder; raises as `hold`."""
        version = hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()[:16]

        def fetch(target: Path) -> None:
            with storage_errors(Path(job)):
                target.mkdir()
                for file in manifest.files:
                    place = self._home.inside(target, file.path.split("/", 2)[2])
                    place.parent.mkdir(parents=True, exist_ok=True)
                    self.bucket.get(file_key(file), place, file.sha256, stop)

        return self.cache.hold(f"{checked(job)}.{int(claim)}.{version}", sum(f.size for f in manifest.files), fetch)

    def manifest(self, job: str, attempt: int | str, stop: threading.Event = NEVER) -> Manifest | None:
        """The manifest of an attempt: its files in the store."""
        try:
            return Manifest.model_validate_json(self.bucket.text(manifest_key(job, attempt), stop))
        except (ObjectGone, ValueError):
            return None

    def published(self, job: str, stop: threading.Event = NEVER) -> list[int]:
        """As `Artifacts.published`: those that have a manifest."""
        return sorted(int(name) for name in self.sent(job, stop) if name.isdecimal())

    def sent(self, job: str, stop: threading.Event = NEVER) -> list[str]:
        """The names of all attempts that have a manifest, also of those that were set aside (`CLAIM.RANDOM`)."""
        named = [parse(key) for key in self.bucket.keys(f"jobs/{checked(job)}", stop)]
        return [one.attempt for one in named if one is not None and one.name == MANIFEST]

    def set_aside(self, job: str, claim: int, stop: threading.Event = NEVER) -> None:
        """Give an earlier attempt of this number another name, as `AttemptDirectory.create` does; its files stay."""
        text = self.bucket.text(manifest_key(job, claim), stop)
        self.bucket.put_text(manifest_key(job, f"{claim}.{secrets.token_hex(8)}"), text, stop)
        self.bucket.remove(manifest_key(job, claim))

    def beside(self, job: str, name: str) -> Path:
        """As `Artifacts.beside`."""
        return self.cache.folder / f"{checked(job)}.{name}"

    def remove_job(self, job: str) -> None:
        """As `Artifacts.remove_job`."""
        self._here.remove_job(job)
        self.bucket.remove(*self.bucket.keys(f"jobs/{checked(job)}"))

    def check(self) -> None:
        """As `Artifacts.check`."""
        self.bucket.check()

    def objects(self) -> dict[str, dict[str, Object]]:
        """Every object, by the id of the job or upload that it belongs to."""
        found: dict[str, dict[str, Object]] = {}
        for prefix in ("jobs", "datasets", "checkpoints"):
            for key, item in self.bucket.keys(prefix).items():
                found.setdefault(key.split("/")[1].partition(".")[0], {})[key] = item
        return found

    def _name(self, upload: Upload) -> str:
        return checked(upload.id) + ("" if upload.kind == "dataset" else ".safetensors")


def pack(folder: Path, packed: Path) -> str:
    """An uncompressed tar of a folder, in one order and without owners and times; returns its SHA-256."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(packed, "w:", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, str(path.relative_to(folder)), recursive=False, filter=plain)
    return file_digest(packed)


def unpack(packed: Path, folder: Path) -> None:
    """Unpack what `pack` packed; raises `RequestError` for anything else."""
    try:
        with tarfile.open(packed, "r:") as tar:
            tar.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise RequestError(f"{folder.name}: the data set in the store is no archive; upload it again") from error


FASTER = 10.0
"""By how much sooner than a job a transfer is tried again: it has less to repeat."""


def open_artifacts(settings: QueueSettings, home: Home) -> LocalArtifacts | SharedArtifacts:
    """Open the configured storage; raises `RequestError` for its URL, `EnvironmentFailure` without its library."""
    if settings.artifacts is None:
        return LocalArtifacts(home)
    bucket = Bucket(settings.artifacts, settings.retry_delay / FASTER)
    return SharedArtifacts(home, bucket, Cache(home.cache, settings.cache_gb * 1e9))
