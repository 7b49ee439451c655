"""What a request may name: models, data sets, jobs, checkpoints, hosts. Looked up before anything is accepted.

Nothing is downloaded and torch is not loaded: the catalogue, the database and the directory's names are enough.
"""

import re
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from tcnn.errors import NothingToConvertError, UnknownModelError
from tcnn.zoo import catalogue
from tcnn.zoo.catalogue import Entry
from tcnn_api.errors import Refused, quoted
from tcnn_api.settings import ApiSettings
from tcnn_jobs.errors import JobNotFound, UploadNotFound
from tcnn_jobs.model import Job, Status, Upload
from tcnn_jobs.store import Store

_TIMM = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_-]+)?")
_HUB_MODEL = re.compile(r"hf-hub:[A-Za-z0-9_-][A-Za-z0-9_.-]*/[A-Za-z0-9_-][A-Za-z0-9_.-]*(@[A-Za-z0-9_.-]+)?")
_KINDS = ("hfds/", "wds/", "torch/")
_URL = "://"
_RANGE = re.compile(r"\{\d+\.\.\d+\}")
"""The only braces of a pattern that cannot spell the name of another directory."""


class References:
    """Looks names up for one tenant. Every method raises `Refused` with the field that holds the name."""

    def __init__(self, settings: ApiSettings, store: Store, tenant: str) -> None:
        self.settings, self.store, self.tenant = settings, store, tenant

    def model(self, field: str, name: str, *, convertible: bool, last_stage: bool = True) -> Entry | None:
        """A timm model, or a hub's where this server allows it; None if the catalogue cannot tell about it.

        `convertible`: something of it must be convertible, in its last stage if `last_stage`.
        """
        if name.startswith("hf-hub:"):
            if not (_HUB_MODEL.fullmatch(name) and ".." not in name and self._allowed(name)):
                raise Refused(field, f"{quoted(name)}: this server allows {self._hub('hf-hub:')}; use a timm name")
            return None
        if not _TIMM.fullmatch(name):
            raise Refused(
                field,
                f"expected a timm name such as resnet50d or resnet50d.ra2_in1k, found {quoted(name)}; "
                "GET /models lists them, POST /checkpoints takes your own weights",
            )
        try:
            return catalogue.check(name, default_choice=convertible and last_stage)
        except UnknownModelError as error:
            raise Refused(field, str(error).replace("`tcnn models` lists", "GET /models lists")) from error
        except NothingToConvertError as error:
            raise Refused(field, str(error)) from error

    def weights(self, field: str, entry: Entry | None, hint: str) -> None:
        """Pretrained weights exist."""
        if entry is not None and not entry.weights:
            raise Refused(field, f"{entry.name}: timm has no pretrained weights for it; {hint}")

    def job(self, field: str, name: str) -> Job:
        """A job that has made a checkpoint."""
        try:
            job = self.store.get(name, self.tenant)
        except JobNotFound as error:
            raise Refused(field, f"no job {quoted(name)}; GET /jobs lists yours") from error
        if job.status is not Status.SUCCEEDED:
            raise Refused(field, f"expected a job that has succeeded, found {name}, which is {job.status}")
        if job.result is None or job.result.checkpoint is None:
            raise Refused(field, f"{name}: this job made no checkpoint; name a transform or finetune job")
        return job

    def checkpoint(self, field: str, name: str) -> Upload:
        """An uploaded checkpoint."""
        try:
            return self.store.upload(name, "checkpoint", self.tenant)
        except UploadNotFound as error:
            raise Refused(field, f"no checkpoint {quoted(name)}; POST /checkpoints uploads one") from error

    def dataset(self, field: str, name: str) -> tuple[str, Upload | None]:
        """A data set: its name as the job is to use it, and the upload if it is one."""
        if name.startswith("ds_"):
            try:
                return name, self.store.upload(name, "dataset", self.tenant)
            except UploadNotFound as error:
                raise Refused(field, f"no data set {quoted(name)}; POST /datasets uploads one") from error
        if name.startswith(_KINDS) or _URL in name:
            if _climbs(name) or not self._allowed(name):
                allowed = self._hub(name.partition("/")[0] + "/")
                raise Refused(field, f"{quoted(name)}: this server allows {allowed}; upload it (POST /datasets)")
            return name, None
        return self._path(field, name), None

    def _path(self, field: str, name: str) -> str:
        """A path below the roots, resolved, so that what was checked is what the job opens."""
        roots = self.settings.dataset_roots
        if not roots:
            raise Refused(
                field, f"expected the id of an uploaded data set (ds_…, POST /datasets), found {quoted(name)}"
            )
        for root in roots:
            try:
                base = root.expanduser().resolve()
                found = (base / name).resolve()
                if found.is_relative_to(base) and found.exists():
                    return str(found)
            except (OSError, ValueError, RuntimeError):
                continue  # a name that is none to this system, or links in a circle
        raise Refused(field, f"{quoted(name)}: no data set of this path below the directories that this server allows")

    def workers(self, field: str, count: int) -> None:
        """So many slots of one worker at once, where it is known how many there can be.

        To a queue in PostgreSQL a larger worker may come at any time, and Ray's cluster may grow: there a job waits.
        """
        if count == 1 or self.settings.engine == "ray" or not self.settings.database.startswith("sqlite"):
            return
        most = max((worker.slots for worker in self.store.statistics().workers), default=None)
        if most is not None and count > most:
            raise Refused(field, f"expected at most {most}, the slots of this host's largest worker, found {count}")

    def webhook(self, field: str, url: str) -> None:
        """An address that this server may call."""
        allowed = self.settings.webhook_hosts
        if not allowed:
            raise Refused(field, "this server calls no webhooks (TCNN_WEBHOOK_HOSTS); leave it out and GET /jobs/{id}")
        try:
            parts = urlsplit(url)
            host, _ = (parts.hostname or "").lower(), parts.port
        except ValueError:
            host = ""
        good = host and parts.scheme in ("http", "https") and not (parts.username or parts.password) and url.isascii()
        if not good or re.search(r"[\s\\\x00-\x1f]", url):
            raise Refused(field, f"expected http:// or https:// with a host and no user, found {quoted(url)}")
        if not any(fnmatchcase(host, pattern.lower()) for pattern in allowed):
            raise Refused(field, f"host {host} is not allowed on this server; it allows {', '.join(allowed)}")

    def _allowed(self, name: str) -> bool:
        """A URL only by a pattern that is of URLs: a looser one was not meant to let requests into the network."""
        return any(
            fnmatchcase(name, pattern) for pattern in self.settings.hub_names if _URL in pattern or _URL not in name
        )

    def _hub(self, kind: str) -> str:
        """The allowed names of a kind, for messages."""
        names = [pattern for pattern in self.settings.hub_names if pattern.startswith(kind)]
        return f"only {', '.join(names)}" if names else f"no {kind} names (TCNN_HUB_NAMES)"


def _climbs(name: str) -> bool:
    """Whether a name could leave the directory that a pattern of the settings allows it to be in."""
    plain = _RANGE.sub("", name)
    return ".." in plain or "{" in plain or "~" in plain or "\0" in plain or "\\" in plain


def train_images(upload: Upload, val_split: float | None) -> int:
    """Images that are trained on, at most."""
    splits = upload.details.get("splits") or {}
    images = int(splits.get("train", 0) if splits else upload.details.get("images", 0))
    return round(images * (1 - val_split)) if val_split else images
